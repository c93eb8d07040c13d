"""The table of all runs, for the command line and the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fetchsgd.report import text
from fetchsgd.report.runs import KINDS, Run
from fetchsgd.report.tasks import Task, differing_settings, group_by_task

Row = dict[str, Any]


def summary_table(runs: Iterable[Run]) -> list[Row]:
    """One row a run, of plain values; what is not known is None.

    `settings` names only the settings in which the runs of that method differ.
    """
    return [row for task in group_by_task(runs) for row in task_rows(task)]


def task_rows(task: Task) -> list[Row]:
    """The rows of one task, in the order of its runs."""
    differing = {
        method: differing_settings([run for run in task.runs if run.method == method])
        for method in task.methods
    }
    return [_row(run, task, differing[run.method]) for run in task.runs]


def table_text(rows: Sequence[Row]) -> str:
    """The rows as text in aligned columns, for a terminal."""
    lines = [["task", "method", "settings", "seed", "value", *KINDS, "status"]]
    for row in rows:
        seed = text.NOTHING if row["seed"] is None else str(row["seed"])
        value = text.measured(row["value"], row["metric"])
        ratios = [text.times(row[kind]) for kind in KINDS]
        settings = row["settings"] or text.NOTHING
        lines.append([row["task"], row["method"], settings, seed, value, *ratios, row["status"]])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    # Words to the left, numbers to the right: the seed, the value and the three compressions.
    padded = [
        cell.rjust(width) if 3 <= column < 8 else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()


def _row(run: Run, task: Task, differing: Sequence[str]) -> Row:
    return {
        "task": run.task,
        "name": run.name,
        "method": run.method,
        "settings": text.settings(run, differing),
        "seed": run.seed,
        "metric": task.metric,
        "value": run.value,
        **{kind: run.compression[kind] for kind in KINDS},
        "upload_bytes": run.upload_bytes,
        "download_bytes": run.download_bytes,
        "rounds": run.rounds,
        "seconds": run.seconds,
        "status": run.status,
    }
