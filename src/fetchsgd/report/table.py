"""The table of all runs, for the command line and the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any

from fetchsgd.report import text
from fetchsgd.report.runs import Run
from fetchsgd.report.series import NUMBER_SETTINGS, Series
from fetchsgd.report.tasks import Task, differing_settings, group_by_task
from fetchsgd.report.traffic import KINDS, PAPER, WIRE

Row = dict[str, Any]

_WIDTH = 120  # of a terminal
_SETTINGS = 2  # the column that is wrapped where the terminal is too narrow
_HOW_NUMBERS_ARE_WRITTEN = (*NUMBER_SETTINGS, "download.step")
_WORDS = {"task", "method", "settings", "status"}  # columns set to the left


def summary_table(runs: Iterable[Run]) -> list[Row]:
    """One row a run, of plain values; what is not known is None.

    `settings` names only the settings in which the runs of that method differ, and for low-bit
    runs how numbers are written. `upload`, `download` and `overall` are compressions as the paper
    counts, and `wire_upload` and so on are those on the wire.
    """
    return [row for task in group_by_task(runs) for row in task_rows(task)]


def task_rows(task: Task) -> list[Row]:
    """The rows of one task, in the order of its runs."""
    told = {series: _told_settings(task, series) for series in task.series}
    return [_row(run, task, told[run.series]) for run in task.runs]


def table_text(rows: Sequence[Row]) -> str:
    """The rows as text in aligned columns, for a terminal."""
    on_the_wire = any(row["wire_upload_bytes"] is not None for row in rows)
    heads = ["up", "down", "overall", "paper's"] if on_the_wire else list(KINDS)
    ratios = [*(f"wire_{kind}" for kind in KINDS), "overall"] if on_the_wire else list(KINDS)
    head = ["task", "method", "settings", "seed", "value", *heads, "status"]
    lines = [head, *(_line(row, ratios) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    others = sum(widths) - widths[_SETTINGS] + 2 * (len(widths) - 1)
    widths[_SETTINGS] = min(widths[_SETTINGS], max(24, _WIDTH - others))
    to_the_left = [name in _WORDS for name in head]
    table = "\n".join(_aligned(line, widths, to_the_left) for line in lines)
    legend = "up, down, overall: compression on the wire; paper's: overall, as the paper counts"
    return f"{table}\n\n{legend}" if on_the_wire else table


def _told_settings(task: Task, series: Series) -> list[str]:
    own = [run for run in task.runs if run.method == series.method]
    differing = [key for key in differing_settings(own) if key not in _HOW_NUMBERS_ARE_WRITTEN]
    return [*differing, *(_HOW_NUMBERS_ARE_WRITTEN if series.low_bit else ())]


def _line(row: Row, ratios: Sequence[str]) -> list[str]:
    return [
        row["task"],
        row["method"],
        row["settings"] or text.NOTHING,
        text.NOTHING if row["seed"] is None else str(row["seed"]),
        text.measured(row["value"], row["metric"]),
        *(text.times(row[ratio]) for ratio in ratios),
        row["status"],
    ]


def _aligned(cells: Sequence[str], widths: Sequence[int], to_the_left: Sequence[bool]) -> str:
    """One line of the table, and more below it if its settings need them."""
    settings = wrap(cells[_SETTINGS], widths[_SETTINGS])
    first = [*cells[:_SETTINGS], settings[0], *cells[_SETTINGS + 1 :]]
    more = [["", "", part, *[""] * (len(cells) - 3)] for part in settings[1:]]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, to_the_left, strict=True)
        ).rstrip()
        for line in (first, *more)
    )


def _row(run: Run, task: Task, told: Sequence[str]) -> Row:
    paper, wire = run.traffic[PAPER], run.traffic.get(WIRE)
    return {
        "task": run.task,
        "name": run.name,
        "method": run.method,
        "low_bit": run.series.low_bit,
        "settings": text.settings(run, told),
        "seed": run.seed,
        "metric": task.metric,
        "value": run.value,
        **{f"wire_{kind}": run.compression(kind, WIRE) for kind in KINDS},
        **{kind: run.compression(kind, PAPER) for kind in KINDS},
        "wire_upload_bytes": wire.upload_bytes if wire else None,
        "wire_download_bytes": wire.download_bytes if wire else None,
        "upload_bytes": paper.upload_bytes,
        "download_bytes": paper.download_bytes,
        "rounds": run.rounds,
        "seconds": run.seconds,
        "status": run.status,
    }
