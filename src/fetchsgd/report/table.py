"""The table of all runs: as rows of plain values, as text for a terminal, and as HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from textwrap import wrap
from typing import Any, NamedTuple

from fetchsgd.formatting import (
    UNKNOWN,
    format_bytes,
    format_duration,
    format_metric,
    format_ratio,
)
from fetchsgd.report.groups import Task, differing_settings, group_by_task
from fetchsgd.report.runs import Run
from fetchsgd.report.settings import NUMBER_SETTINGS, QUANTISER, Series, settings_line
from fetchsgd.report.styles import Style
from fetchsgd.report.traffic import KINDS, PAPER, WIRE

Row = dict[str, Any]
Cell = tuple[object, str]  # the key to sort by, None for unknown; and what to show

_WIDTH = 120  # of a terminal
_SETTINGS = 2  # the column that is wrapped if the terminal is too narrow
_NUMBER_FORMAT = (QUANTISER, *NUMBER_SETTINGS, "download.step")
_WORDS = {"task", "method", "settings", "status"}  # columns aligned to the left


class Column(NamedTuple):
    """A column of the page's table; neighbours with the same `group` share a heading above them."""

    name: str
    cell: Callable[[Row], Cell]
    group: str = ""
    words: bool = False  # aligned to the left and sorted as text

    @property
    def look(self) -> str:
        return f"words {self.name}" if self.words else "number"


def summary_table(runs: Iterable[Run]) -> list[Row]:
    """One row per run, of plain values; None is unknown.

    `settings` names only the settings in which the runs of that method differ, and for low-bit
    runs how numbers are written. `upload`, `download` and `overall` are compressions as the paper
    counts, and `wire_upload` and so on are those on the wire.
    """
    return [row for task in group_by_task(runs) for row in task_rows(task)]


def task_rows(task: Task) -> list[Row]:
    """The rows of one task, in the order of its runs."""
    shown = {series: _shown_settings(task, series) for series in task.series}
    return [
        {**_row(run, task, shown[run.series]), "number": number}
        for group, number in zip(task.groups, task.numbers, strict=True)
        for run in group.runs
    ]


def table_text(rows: Sequence[Row]) -> str:
    """The rows as text in aligned columns, for a terminal."""
    on_the_wire = any(row["wire_upload_bytes"] is not None for row in rows)
    heads = ["up", "down", "overall", "paper's"] if on_the_wire else list(KINDS)
    ratios = [*(f"wire_{kind}" for kind in KINDS), "overall"] if on_the_wire else list(KINDS)
    privacy = ["epsilon"] if _any_private(rows) else []
    head = ["task", "method", "settings", "seed", "value", *privacy, *heads, "status"]
    lines = [head, *(_line(row, ratios, bool(privacy)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    others = sum(widths) - widths[_SETTINGS] + 2 * (len(widths) - 1)
    widths[_SETTINGS] = min(widths[_SETTINGS], max(24, _WIDTH - others))
    is_left = [name in _WORDS for name in head]
    table = "\n".join(_aligned(line, widths, is_left) for line in lines)
    legend = "up, down, overall: compression on the wire; paper's: overall, as the paper counts"
    return f"{table}\n\n{legend}" if on_the_wire else table


def table_html(task: Task, styles: Mapping[Series, Style]) -> str:
    """The table of one task for the page, which needs the script only to sort it."""
    columns = _page_columns(task, styles)
    looks = {series: f"m{index}" for index, series in enumerate(styles)}
    body = "\n".join(
        f'<tr class="{run.status} {looks[run.series]}">'
        + "".join(_cell(column, row) for column in columns)
        + "</tr>"
        for run, row in zip(task.runs, task_rows(task), strict=True)
    )
    return f"<table><thead>{_head(columns)}</thead><tbody>\n{body}\n</tbody></table>"


def _shown_settings(task: Task, series: Series) -> list[str]:
    own = [run for run in task.runs if run.method == series.method]
    differing = [key for key in differing_settings(own) if key not in _NUMBER_FORMAT]
    if series.low_bit:
        return [*differing, *_NUMBER_FORMAT]
    alike = differing_settings([run for run in own if run.series == series])
    return [*differing, *(key for key in _NUMBER_FORMAT if key in alike)]


def _any_private(rows: Iterable[Row]) -> bool:
    return any(row["epsilon"] is not None for row in rows)


def format_epsilon(row: Row) -> str:
    """What was spent; the unknown is no privacy at all."""
    return UNKNOWN if row["epsilon"] is None else f"{row['epsilon']:.3g}"


def _line(row: Row, ratios: Sequence[str], is_private: bool) -> list[str]:
    return [
        row["task"],
        row["method"],
        row["settings"] or UNKNOWN,
        UNKNOWN if row["seed"] is None else str(row["seed"]),
        format_metric(row["value"], row["metric"]),
        *([format_epsilon(row)] if is_private else []),
        *(format_ratio(row[ratio]) for ratio in ratios),
        row["status"],
    ]


def _aligned(cells: Sequence[str], widths: Sequence[int], is_left: Sequence[bool]) -> str:
    """One line of the table, and more below it if its settings need them."""
    settings = wrap(cells[_SETTINGS], widths[_SETTINGS])
    first = [*cells[:_SETTINGS], settings[0], *cells[_SETTINGS + 1 :]]
    more = [["", "", part, *[""] * (len(cells) - 3)] for part in settings[1:]]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, is_left, strict=True)
        ).rstrip()
        for line in (first, *more)
    )


def _row(run: Run, task: Task, shown: Sequence[str]) -> Row:
    paper, wire = run.traffic[PAPER], run.traffic.get(WIRE)
    return {
        "task": run.task,
        "name": run.name,
        "method": run.method,
        "low_bit": run.series.low_bit,
        "settings": settings_line(run.settings, shown),
        "seed": run.seed,
        "metric": task.metric,
        "value": run.value,
        "epsilon": run.epsilon,
        "delta": run.delta,
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


def _page_columns(task: Task, styles: Mapping[Series, Style]) -> list[Column]:
    def label(row: Row) -> Cell:
        words = styles[Series(row["method"], row["low_bit"])].label
        return words, words

    numbered = any(number is not None for number in task.numbers)
    return [
        *([Column("no.", lambda row: (row["number"], _whole(row["number"])))] if numbered else []),
        Column("run", lambda row: (row["name"], row["name"]), words=True),
        Column("method", label, words=True),
        Column("settings", lambda row: (row["settings"], row["settings"] or UNKNOWN), words=True),
        Column("seed", lambda row: (row["seed"], _whole(row["seed"]))),
        Column(task.metric, lambda row: (row["value"], format_metric(row["value"], task.metric))),
        *(_privacy_columns() if any(run.epsilon is not None for run in task.runs) else []),
        *(_wire_columns() if WIRE in task.counts else _paper_columns()),
        Column("rounds", lambda row: (row["rounds"], f"{row['rounds']:,}")),
        Column("time", lambda row: (row["seconds"], format_duration(row["seconds"]))),
        Column("status", lambda row: (row["status"], row["status"]), words=True),
    ]


def _privacy_columns() -> list[Column]:
    return [
        Column("epsilon", lambda row: (row["epsilon"], format_epsilon(row)), "privacy"),
        Column("delta", lambda row: (row["delta"], _small(row["delta"])), "privacy"),
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
    return Column(name, lambda row: (row[key], format_ratio(row[key])), group)


def _size(name: str, key: str) -> Column:
    return Column(name, lambda row: (row[key], format_bytes(row[key])))


def _sent_on_the_wire(row: Row) -> Cell:
    if row["wire_upload_bytes"] is None:
        return None, UNKNOWN
    sent = row["wire_upload_bytes"] + row["wire_download_bytes"]
    return sent, format_bytes(sent)


def _small(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:g}"


def _whole(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)


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
