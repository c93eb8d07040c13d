"""The page's table of all runs: complete without the script, which only sorts it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from fetchsgd.report import text
from fetchsgd.report.runs import KINDS
from fetchsgd.report.styles import Style
from fetchsgd.report.table import Row, task_rows
from fetchsgd.report.tasks import Task

Cell = tuple[object, str]  # what to sort by, None for unknown; and what to show

_WORDS = ("run", "method", "settings", "status")  # columns set to the left and sorted as text


def table_html(task: Task, styles: Mapping[str, Style]) -> str:
    """The table of one task."""
    rows = [_cells(row, styles) for row in task_rows(task)]
    looks = {method: f"m{index}" for index, method in enumerate(styles)}
    head = "".join(
        f'<th scope="col" class="{_side(name)}" aria-sort="none">'
        f'<button type="button">{escape(name)}</button></th>'
        for name in rows[0]
    )
    body = "\n".join(
        f'<tr class="{run.status} {looks[run.method]}">'
        + "".join(_cell(name, *cell) for name, cell in cells.items())
        + "</tr>"
        for run, cells in zip(task.runs, rows, strict=True)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _cells(row: Row, styles: Mapping[str, Style]) -> dict[str, Cell]:
    seed = row["seed"]
    return {
        "run": (row["name"], row["name"]),
        "method": (row["method"], styles[row["method"]].label),
        "settings": (row["settings"], row["settings"] or text.NOTHING),
        "seed": (seed, text.NOTHING if seed is None else str(seed)),
        row["metric"]: (row["value"], text.measured(row["value"], row["metric"])),
        **{kind: (row[kind], text.times(row[kind])) for kind in KINDS},
        "uploaded": (row["upload_bytes"], text.size(row["upload_bytes"])),
        "downloaded": (row["download_bytes"], text.size(row["download_bytes"])),
        "rounds": (row["rounds"], f"{row['rounds']:,}"),
        "time": (row["seconds"], text.duration(row["seconds"])),
        "status": (row["status"], row["status"]),
    }


def _cell(name: str, key: object, shown: str) -> str:
    sort_key = "" if key is None else f' data-key="{escape(str(key))}"'
    label = name if name in _WORDS else ""
    return f'<td class="{_side(name)} {label}"{sort_key}>{escape(shown)}</td>'


def _side(name: str) -> str:
    return "words" if name in _WORDS else "number"
