"""What the page's script draws, as JSON that is safe inside HTML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fetchsgd.report import text
from fetchsgd.report.curves import Curve, loss_curve, metric_curve
from fetchsgd.report.runs import KINDS, UNFINISHED, Run
from fetchsgd.report.styles import Style
from fetchsgd.report.tasks import Task, differing_settings

# Always shown with a run; other settings are shown where the runs of a task differ in them.
_TELLING = ("method.", "local.")


def page_json(tasks: Sequence[Task], styles: Mapping[str, Style]) -> str:
    """Everything that the script needs, with `<`, `>` and `&` escaped so that no tag can begin."""
    methods = list(styles)
    data = {
        "methods": [_method(index, methods[index], styles) for index in range(len(methods))],
        "tasks": [_task(task) for task in tasks],
    }
    encoded = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        encoded = encoded.replace(character, f"\\u{ord(character):04x}")
    return encoded


def run_details(run: Run, task: Task, differing: Sequence[str]) -> list[tuple[str, str]]:
    """What a tooltip says about a run, as pairs of a name and a text."""
    # The epochs that were done are told below, and are those of the settings unless it diverged.
    told = [key for key in run.settings if key.startswith(_TELLING) or key in differing]
    keys = [key for key in told if key != "train.epochs"]
    pairs = [(text.setting_name(key), text.setting_value(run.settings[key])) for key in keys]
    seed = text.NOTHING if run.seed is None else str(run.seed)
    so_far = " so far" if run.status == UNFINISHED else ""
    return [
        (task.metric + so_far, text.measured(run.value, task.metric)),
        *((f"{kind} compression", text.times(run.compression[kind])) for kind in KINDS),
        *pairs,
        ("epochs", text.setting_value(float(run.epochs))),
        ("rounds", f"{run.rounds:,}"),
        ("seed", seed),
        ("uploaded", text.size(run.upload_bytes)),
        ("downloaded", text.size(run.download_bytes)),
        ("time", text.duration(run.seconds)),
    ]


def _method(index: int, name: str, styles: Mapping[str, Style]) -> dict[str, Any]:
    style = styles[name]
    dash = " ".join(f"{length:g}" for length in style.dash)
    return {
        "name": name,
        "label": style.label,
        "look": f"m{index}",
        "marker": style.marker,
        "dash": dash,
    }


def _task(task: Task) -> dict[str, Any]:
    differing = differing_settings(task.runs)
    fronts = {kind: task.in_front(kind) for kind in KINDS}
    return {
        "name": task.name,
        "metric": task.metric,
        "axis": text.axis_title(task.metric, task.higher_is_better),
        "higherIsBetter": task.higher_is_better,
        "methods": task.methods,
        "runs": [
            {
                "id": index,
                "name": run.name,
                "method": run.method,
                "status": run.status,
                "value": run.value,
                "compression": dict(run.compression),
                "drawn": {kind: run.can_be_drawn(kind) for kind in KINDS},
                "front": {kind: index in fronts[kind] for kind in KINDS},
                "details": run_details(run, task, differing),
                "curves": {
                    "metric": _rounded(metric_curve(run)),
                    "loss": _rounded(loss_curve(run)),
                },
            }
            for index, run in enumerate(task.runs)
        ],
    }


def _rounded(curve: Curve) -> dict[str, list[float]]:
    """A page of a hundred runs should not weigh megabytes: six digits are more than a pixel."""
    columns: dict[str, list[float]] = asdict(curve)
    for name in ("epoch", "y"):
        columns[name] = [float(f"{number:.6g}") for number in columns[name]]
    return columns
