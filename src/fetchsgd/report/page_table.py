"""The page's table of all runs: complete without the script, which only sorts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from fetchsgd.report import text
from fetchsgd.report.series import Series
from fetchsgd.report.styles import Style
from fetchsgd.report.table import Row, task_rows
from fetchsgd.report.tasks import Task
from fetchsgd.report.traffic import KINDS, WIRE

Cell = tuple[object, str]  # what to sort by, None for unknown; and what to show


class Column(NamedTuple):
    """A column of the table; `group` is a heading above it that it shares with its neighbours."""

    name: str
    cell: Callable[[Row], Cell]
    group: str = ""
    words: bool = False  # set to the left and sorted as text

    @property
    def look(self) -> str:
        return f"words {self.name}" if self.words else "number"


def table_html(task: Task, styles: Mapping[Series, Style]) -> str:
    """The table of one task."""
    columns = _columns(task, styles)
    looks = {series: f"m{index}" for index, series in enumerate(styles)}
    body = "\n".join(
        f'<tr class="{run.status} {looks[run.series]}">'
        + "".join(_cell(column, row) for column in columns)
        + "</tr>"
        for run, row in zip(task.runs, task_rows(task), strict=True)
    )
    return f"<table><thead>{_head(columns)}</thead><tbody>\n{body}\n</tbody></table>"


def _columns(task: Task, styles: Mapping[Series, Style]) -> list[Column]:
    def label(row: Row) -> Cell:
        words = styles[Series(row["method"], row["low_bit"])].label
        return words, words

    return [
        Column("run", lambda row: (row["name"], row["name"]), words=True),
        Column("method", label, words=True),
        Column("settings", lambda row: (row["settings"], row["settings"] or "–"), words=True),
        Column("seed", lambda row: (row["seed"], _whole(row["seed"]))),
        Column(task.metric, lambda row: (row["value"], text.measured(row["value"], task.metric))),
        *(_wire_columns() if WIRE in task.counts else _paper_columns()),
        Column("rounds", lambda row: (row["rounds"], f"{row['rounds']:,}")),
        Column("time", lambda row: (row["seconds"], text.duration(row["seconds"]))),
        Column("status", lambda row: (row["status"], row["status"]), words=True),
    ]


def _wire_columns() -> list[Column]:
    wire, paper = "on the wire", "paper"
    return [
        _ratio("up", "wire_upload", wire),
        _ratio("down", "wire_download", wire),
        _ratio("overall", "wire_overall", wire),
        Column("sent", _sent_on_the_wire, wire),
        _ratio("overall", "overall", paper),
    ]


def _paper_columns() -> list[Column]:
    return [
        *(_ratio(kind, kind, "") for kind in KINDS),
        _size("uploaded", "upload_bytes"),
        _size("downloaded", "download_bytes"),
    ]


def _ratio(name: str, key: str, group: str) -> Column:
    return Column(name, lambda row: (row[key], text.times(row[key])), group)


def _size(name: str, key: str) -> Column:
    return Column(name, lambda row: (row[key], text.size(row[key])))


def _sent_on_the_wire(row: Row) -> Cell:
    if row["wire_upload_bytes"] is None:
        return None, text.NOTHING
    sent = row["wire_upload_bytes"] + row["wire_download_bytes"]
    return sent, text.size(sent)


def _whole(number: int | None) -> str:
    return text.NOTHING if number is None else str(number)


def _head(columns: Sequence[Column]) -> str:
    names = "".join(
        f'<th scope="col" class="{column.look}" aria-sort="none">'
        f'<button type="button">{escape(column.name)}</button></th>'
        for column in columns
    )
    spans = [(group, len(list(own))) for group, own in groupby(columns, lambda c: c.group)]
    if len(spans) == 1:
        return f"<tr>{names}</tr>"
    groups = "".join(
        f'<th scope="colgroup" colspan="{span}" class="group">{group}</th>'
        if group
        else f'<td colspan="{span}"></td>'
        for group, span in spans
    )
    return f"<tr>{groups}</tr><tr>{names}</tr>"


def _cell(column: Column, row: Row) -> str:
    key, shown = column.cell(row)
    sort_key = "" if key is None else f' data-key="{escape(str(key))}"'
    return f'<td class="{column.look}"{sort_key}>{escape(shown)}</td>'
