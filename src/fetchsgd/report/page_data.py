"""What the page's script draws: points, curves and tooltips, as JSON that is safe inside HTML."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fetchsgd.formatting import (
    UNKNOWN,
    format_bytes,
    format_duration,
    format_metric,
    format_ratio,
    plural,
)
from fetchsgd.report.curves import Curve, diagnostic_curve, loss_curve, metric_curve
from fetchsgd.report.diagnostics import QUANTITIES, measured_in
from fetchsgd.report.groups import Group, Task, distinguishing_settings
from fetchsgd.report.runs import FINISHED, UNFINISHED, Run
from fetchsgd.report.settings import Series, setting_name, setting_value
from fetchsgd.report.styles import Style
from fetchsgd.report.traffic import COUNTED, KINDS, PAPER, WIRE, Traffic

Details = list[tuple[str, str]]

# Always shown with a run: how much is sent, and how. Others are shown where they distinguish it.
_ALWAYS = {
    *("method.k", "method.rows", "method.cols"),
    *("upload.quantiser", "upload.bits", "upload.tau", "upload.bytes", "upload.rate"),
    *("download.grid", "download.step"),
}


def page_json(tasks: Sequence[Task], styles: Mapping[Series, Style]) -> str:
    """All that the script needs, with `<`, `>` and `&` escaped so that no tag can begin."""
    data = {
        "series": [_series(index, *item) for index, item in enumerate(styles.items())],
        "tasks": [_task(task) for task in tasks],
    }
    encoded = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        encoded = encoded.replace(character, f"\\u{ord(character):04x}")
    return encoded


def _series(index: int, series: Series, style: Style) -> dict[str, Any]:
    return {
        "key": series.key,
        "label": style.label,
        "look": f"m{index}",
        "marker": style.marker,
        "hollow": style.hollow,
        "dash": " ".join(f"{length:g}" for length in style.look.dash),
    }


def _task(task: Task) -> dict[str, Any]:
    methods = {run.method for run in task.runs}
    shown = {method: distinguishing_settings(task.runs, method) for method in methods}
    fronts = {
        (kind, count): task.on_frontier(kind, count) for kind in KINDS for count in task.counts
    }
    on_frontier = [
        {count: {kind: index in fronts[kind, count] for kind in KINDS} for count in task.counts}
        for index in range(len(task.groups))
    ]
    groups = list(zip(task.groups, task.numbers, on_frontier, strict=True))
    return {
        "name": task.name,
        "metric": task.metric,
        "axis": task.axis_title,
        "higherIsBetter": task.higher_is_better,
        "series": [series.key for series in task.series],
        "count": task.count,
        "counted": {count: COUNTED[count] for count in task.counts},
        "diagnostics": {
            name: {"title": quantity.title, "axis": quantity.axis}
            for name, quantity in measured_in(task.runs).items()
        },
        "groups": [
            {"number": number, **_group(group, task, shown[group.series.method], front)}
            for group, number, front in groups
        ],
        "runs": [
            {"number": number, **_run(run, task, shown[run.method], front)}
            for group, number, front in groups
            for run in group.runs
        ],
    }


def _group(
    group: Group, task: Task, shown: Collection[str], front: Mapping[str, Mapping[str, bool]]
) -> dict[str, Any]:
    """One point in the figures of compression."""
    points = {count: {kind: group.point(kind, count) for kind in KINDS} for count in task.counts}
    return {
        "name": group_name(group),
        "series": group.series.key,
        "status": group_status(group),
        "points": {
            count: {kind: asdict(point) for kind, point in by_kind.items() if point}
            for count, by_kind in points.items()
        },
        "front": front,
        "details": group_details(group, task, shown),
    }


def _run(
    run: Run, task: Task, shown: Collection[str], front: Mapping[str, Mapping[str, bool]]
) -> dict[str, Any]:
    """One curve, drawn strong if its group is on the frontier and it is part of the mean."""
    return {
        "name": run.name,
        "series": run.series.key,
        "status": run.status,
        "value": run.value,
        "front": {
            count: front[count]["overall"] and run.can_be_drawn("overall", count)
            for count in task.counts
        },
        "details": run_details(run, task, shown),
        "curves": {name: _rounded(curve) for name, curve in _curves(run)},
    }


def _curves(run: Run) -> Iterator[tuple[str, Curve]]:
    yield from (("metric", metric_curve(run)), ("loss", loss_curve(run)))
    for name in QUANTITIES:
        curve = diagnostic_curve(run, name)
        if curve.y:
            yield name, curve


def _rounded(curve: Curve) -> dict[str, Any]:
    """Six digits, finer than a pixel: a page of a hundred runs should not take megabytes."""
    columns = asdict(curve)
    for name in ("epoch", "y"):
        columns[name] = [float(f"{number:.6g}") for number in columns[name]]
    return columns


def run_details(run: Run, task: Task, shown: Collection[str]) -> Details:
    """Pairs of a name and a text."""
    so_far = " so far" if run.status == UNFINISHED else ""
    return [
        (task.metric + so_far, format_metric(run.value, task.metric)),
        *_privacy(run),
        *_sums(run),
        *_compressions(lambda kind, count: run.compression(kind, count), task),
        ("seed", _seeds([run])),
        *_settings(run, shown),
        *_length(run),
        *_effort(run, task),
    ]


def _privacy(run: Run) -> Details:
    if run.epsilon is None or run.delta is None:
        return []
    return [("privacy", f"epsilon {run.epsilon:.3g} at delta {run.delta:g}")]


def _sums(run: Run) -> Details:
    """Of sums modulo 2^b: what wrapped around, and how fine they were at last."""
    seen = [line for line in (run.record or {}).get("metrics", []) if "sum_step" in line]
    if not seen or run.record is None:
        return []
    known = "sum_wraps" in run.record
    share = run.record["sum_wraps" if known else "sum_wraps_estimated"]
    wraps = f"{share:.2g} of cells wrapped{'' if known else ', by estimate'}"
    return [("sums", f"{wraps}; last step {seen[-1]['sum_step']:.3g}")]


def group_name(group: Group) -> str:
    others = len(group.runs) - 1
    return group.runs[0].name + (f" and {plural(others, 'more seed')}" if others else "")


def group_status(group: Group) -> str:
    """Shown after the method's name: the state of a run, or how many runs this is the mean of."""
    if len(group.runs) == 1:
        return group.runs[0].status
    return f"mean of {plural(len(_finished(group)), 'seed')}"


def group_details(group: Group, task: Task, shown: Collection[str]) -> Details:
    """As for a run, with the seeds, the range, and the seeds that are not in the mean."""
    if len(group.runs) == 1:
        return run_details(group.runs[0], task, shown)
    typical = (_finished(group) or group.runs)[0]
    return [
        *_mean_and_range(group, task),
        *_privacy(typical),
        *_compressions(lambda kind, count: _mean_compression(group, kind, count), task),
        *_left_out(group),
        *_settings(typical, shown),
        *_length(typical),
    ]


def _finished(group: Group) -> list[Run]:
    return group.drawn("overall", PAPER)


def _mean_and_range(group: Group, task: Task) -> Details:
    point, averaged = group.point("overall", PAPER), _finished(group)
    if point is None:
        return [(task.metric, UNKNOWN)]
    low, high = format_metric(point.low, task.metric), format_metric(point.high, task.metric)
    return [
        (f"mean {task.metric}", format_metric(point.value, task.metric)),
        ("min to max", f"{low} to {high}"),
        ("seeds", f"{_seeds(averaged)} (n = {len(averaged)})"),
    ]


def _left_out(group: Group) -> Details:
    """Seeds that diverged or are still running have no value to add to a mean."""
    others = [run for run in group.runs if run.status != FINISHED]
    statuses = dict.fromkeys(run.status for run in others)
    return [
        (f"{status}, not in the mean", f"seed {_seeds([r for r in others if r.status == status])}")
        for status in statuses
    ]


def _mean_compression(group: Group, kind: str, count: str) -> float | None:
    point = group.point(kind, count)
    return point.compression if point else None


def _compressions(ratio: Callable[[str, str], float | None], task: Task) -> Details:
    return [
        (f"{kind} compression", _both({c: format_ratio(ratio(kind, c)) for c in task.counts}))
        for kind in KINDS
    ]


def _settings(run: Run, shown: Collection[str]) -> Details:
    # The epochs that were done follow below; unless it diverged they are those of the settings.
    present = [key for key in run.settings if key in _ALWAYS or key in shown]
    keys = [key for key in present if key != "train.epochs"]
    return [(setting_name(key), setting_value(run.settings[key])) for key in keys]


def _length(run: Run) -> Details:
    return [
        ("epochs", setting_value(float(run.epochs))),
        ("rounds", f"{run.rounds:,}"),
    ]


def _effort(run: Run, task: Task) -> Details:
    def sent(bytes_of: Callable[[Traffic], int]) -> str:
        traffic = {count: run.traffic.get(count) for count in task.counts}
        return _both({c: format_bytes(bytes_of(t) if t else None) for c, t in traffic.items()})

    return [
        ("uploaded", sent(lambda traffic: traffic.upload_bytes)),
        ("downloaded", sent(lambda traffic: traffic.download_bytes)),
        ("time", format_duration(run.seconds)),
    ]


def _both(shown: dict[str, str]) -> str:
    """A number on the wire, followed by the paper's."""
    return f"{shown[WIRE]} (paper {shown[PAPER]})" if WIRE in shown else shown[PAPER]


def _seeds(runs: Sequence[Run]) -> str:
    return ", ".join(UNKNOWN if run.seed is None else str(run.seed) for run in runs)
