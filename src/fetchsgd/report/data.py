"""What the page's script draws, as JSON that is safe inside HTML."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fetchsgd.report import text
from fetchsgd.report.curves import Curve, diagnostic_curve, loss_curve, metric_curve
from fetchsgd.report.details import group_details, group_name, group_status, run_details
from fetchsgd.report.diagnostics import QUANTITIES, measured_in
from fetchsgd.report.runs import Run
from fetchsgd.report.seeds import Group
from fetchsgd.report.series import Series
from fetchsgd.report.styles import Style
from fetchsgd.report.tasks import Task, telling_settings
from fetchsgd.report.traffic import KINDS


def page_json(tasks: Sequence[Task], styles: Mapping[Series, Style]) -> str:
    """Everything that the script needs, with `<`, `>` and `&` escaped so that no tag can begin."""
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
    telling = {method: telling_settings(task.runs, method) for method in methods}
    fronts = {(kind, count): task.in_front(kind, count) for kind in KINDS for count in task.counts}
    in_front = [
        {count: {kind: index in fronts[kind, count] for kind in KINDS} for count in task.counts}
        for index in range(len(task.groups))
    ]
    groups = list(zip(task.groups, in_front, strict=True))
    return {
        "name": task.name,
        "metric": task.metric,
        "axis": text.axis_title(task.metric, task.higher_is_better),
        "higherIsBetter": task.higher_is_better,
        "series": [series.key for series in task.series],
        "count": task.count,
        "counted": {count: text.COUNTED[count] for count in task.counts},
        "diagnostics": {
            name: {"title": quantity.title, "axis": quantity.axis}
            for name, quantity in measured_in(task.runs).items()
        },
        "groups": [
            _group(group, task, telling[group.series.method], front) for group, front in groups
        ],
        "runs": [
            _run(run, task, telling[run.method], front)
            for group, front in groups
            for run in group.runs
        ],
    }


def _group(
    group: Group, task: Task, telling: Collection[str], front: Mapping[str, Mapping[str, bool]]
) -> dict[str, Any]:
    """What is one point in the figures of compression."""
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
        "details": group_details(group, task, telling),
    }


def _run(
    run: Run, task: Task, telling: Collection[str], front: Mapping[str, Mapping[str, bool]]
) -> dict[str, Any]:
    """What is one curve; it is strong where its group is in front and it is part of the mean."""
    return {
        "name": run.name,
        "series": run.series.key,
        "status": run.status,
        "value": run.value,
        "front": {
            count: front[count]["overall"] and run.can_be_drawn("overall", count)
            for count in task.counts
        },
        "details": run_details(run, task, telling),
        "curves": {name: _rounded(curve) for name, curve in _curves(run)},
    }


def _curves(run: Run) -> Iterator[tuple[str, Curve]]:
    yield from (("metric", metric_curve(run)), ("loss", loss_curve(run)))
    for name in QUANTITIES:
        curve = diagnostic_curve(run, name)
        if curve.y:
            yield name, curve


def _rounded(curve: Curve) -> dict[str, Any]:
    """A page of a hundred runs should not weigh megabytes: six digits are more than a pixel."""
    columns = asdict(curve)
    for name in ("epoch", "y"):
        columns[name] = [float(f"{number:.6g}") for number in columns[name]]
    return columns
