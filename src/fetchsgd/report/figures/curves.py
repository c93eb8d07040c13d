"""Curves for print: the metric against rounds and bytes, and diagnostics against rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fetchsgd.formatting import format_bytes
from fetchsgd.report.curves import diagnostic_curve, mean_curve
from fetchsgd.report.diagnostics import measured_in
from fetchsgd.report.figures.axes import (
    curves_note,
    finish,
    grid,
    linestyle,
    literal,
    log_axis,
    marker,
    quality_axis,
    shown,
)
from fetchsgd.report.figures.tags import Tag, key, tagged, write_tags
from fetchsgd.report.groups import Task
from fetchsgd.report.runs import DIVERGED, Run
from fetchsgd.report.styles import Style, series_styles
from fetchsgd.report.traffic import COUNTED

_COLUMNS = 3  # of small figures


def curves(task: Task) -> Figure:
    """A curve for the mean of each group; faint if it is not on the frontier."""
    figure = Figure(figsize=(9, 3.9), layout="constrained")
    by_round, by_bytes = figure.subplots(1, 2, sharey=True)
    ends = [
        _metric_curve(by_round, by_bytes, task, runs, style, strong)
        for _, runs, style, strong in _lines_of(task)
    ]
    _legend_entries(by_round, series_styles(task.series).values())
    quality_axis(by_round, task)
    log_axis(by_bytes, lambda number: format_bytes(round(number)), inches=4.1)
    by_round.xaxis.set_major_locator(MaxNLocator(integer=True))
    by_round.margins(x=0.12)  # room for numbers at the ends
    by_round.set_xlabel("Rounds")
    by_bytes.set_xlabel(f"Bytes sent both ways, {COUNTED[task.count]}")
    for axes in (by_round, by_bytes):
        grid(axes)
    numbers = tagged(task, task.on_frontier("overall", task.count))
    finish(figure, by_round, task, curves_note(task), key(task, numbers))
    figure.draw_without_rendering()  # only now are the places of points on paper known
    for place, axes in enumerate((by_round, by_bytes)):
        _tag_ends(axes, task, numbers, [pair[place] for pair in ends])
    return figure


def _tag_ends(
    axes: Axes, task: Task, numbers: dict[int, int], ends: Sequence[tuple[float, float] | None]
) -> None:
    """The numbers of groups at the ends of their curves."""
    lines = list(zip(_lines_of(task), ends, strict=True))
    tags = [
        Tag(numbers[index], end, style.look.light, strong)
        for (index, runs, style, strong), end in lines
        if end is not None and index in numbers and runs[0].status != DIVERGED
    ]
    write_tags(axes, tags, [end for end in ends if end is not None], behind=True)


def diagnostics(task: Task) -> Figure:
    """A small figure for each quantity; some run of the task must have been diagnosed."""
    quantities = measured_in(task.runs)
    columns = min(_COLUMNS, len(quantities))
    rows = -(-len(quantities) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.3 * rows + 0.9), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (name, quantity) in zip(places, quantities.items(), strict=False):
        for _, runs, style, strong in _lines_of(task):
            _diagnostic_curve(axes, name, runs, style, strong, task)
        _diagnostic_scale(axes)
        axes.set_ylabel(quantity.axis)
        axes.set_xlabel("Rounds")
        grid(axes)
    for axes in places[len(quantities) :]:
        axes.set_visible(False)
    diagnosed = {run.series for run in task.runs if measured_in([run])}
    styles = series_styles(task.series)
    _legend_entries(places[0], [style for series, style in styles.items() if series in diagnosed])
    finish(figure, places[0], task, curves_note(task))
    # The title of all does not belong to the first of many small figures.
    figure.suptitle(places[0].get_title(loc="left"), x=0.01, ha="left", fontsize=10)
    places[0].set_title("", loc="left")
    for axes, quantity in zip(places, quantities.values(), strict=False):
        axes.set_title(quantity.title, fontsize=9)
    return figure


def _lines_of(task: Task) -> Iterator[tuple[int, Sequence[Run], Style, bool]]:
    """What is drawn as one line: seeds that are averaged, or a run; and whether it is strong.

    First comes the place of its group among those of the task.
    """
    styles = series_styles(task.series)
    front = task.on_frontier("overall", task.count)
    for index, group in enumerate(task.groups):
        averaged = group.drawn("overall", task.count)
        lines = [averaged] if averaged else []
        lines += [[run] for run in group.runs if run not in averaged]
        for runs in lines:
            yield index, runs, styles[group.series], index in front and runs is averaged


def _legend_entries(axes: Axes, styles: Iterable[Style]) -> None:
    """A line without points for each series."""
    for style in styles:
        axes.plot(
            [],
            [],
            color=style.look.light,
            linestyle=linestyle(style),
            label=literal(style.label),
            **marker(style, 5),
        )


def _metric_curve(
    by_round: Axes,
    by_bytes: Axes,
    task: Task,
    runs: Sequence[Run],
    style: Style,
    strong: bool,
) -> tuple[tuple[float, float] | None, tuple[float, float] | None]:
    """One run, or the mean of its seeds with a shade from the worst to the best.

    Where it ends in both figures, if it is drawn there.
    """
    ends: list[tuple[float, float] | None] = []
    curve = mean_curve(runs, task.count)
    line, end = _looks(style, strong)
    calm = any(run.status != DIVERGED for run in task.runs)
    for axes, xs in ((by_round, curve.round), (by_bytes, curve.bytes)):
        # Before anything was sent there is no place on a logarithmic axis, and without a count
        # there is none on any.
        rows = [
            (x, *(shown(value, task) for value in values))
            for x, *values in zip(xs, curve.y, curve.low, curve.high, strict=True)
            if x or (x == 0 and axes is by_round)
        ]
        x, y, low, high = ([row[column] for row in rows] for column in range(4))
        for place, look in ((slice(None), line), (slice(-1, None), end)):
            # A run that diverges would flatten all others; a mere artist does not set the scale.
            if calm and runs[0].status == DIVERGED:
                axes.add_artist(Line2D(x[place], y[place], **look))
            else:
                axes.plot(x[place], y[place], **look)
        if strong and len(runs) > 1:
            axes.fill_between(x, low, high, color=style.look.light, alpha=0.15, linewidth=0)
        ends.append((x[-1], y[-1]) if x else None)
    return ends[0], ends[1]


def _looks(style: Style, strong: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """How a curve looks, and the marker at its end."""
    both = {
        "color": style.look.light,
        "alpha": 1 if strong else 0.3,
        "zorder": 3 if strong else 2,
    }
    line = {"linestyle": linestyle(style), "linewidth": 1.6 if strong else 0.9}
    return {**both, **line}, {**both, **marker(style, 5)}


def _diagnostic_curve(
    axes: Axes, name: str, runs: Sequence[Run], style: Style, strong: bool, task: Task
) -> None:
    """No line if not all of the seeds were diagnosed: they have no rounds in common."""
    curve = mean_curve(runs, task.count, partial(diagnostic_curve, name=name))
    calm = any(run.status != DIVERGED for run in task.runs)
    if not curve.round or (calm and runs[0].status == DIVERGED):
        return
    line, end = _looks(style, strong)
    axes.plot(curve.round, curve.y, **line)
    axes.plot(curve.round[-1:], curve.y[-1:], **end)
    if strong and len(runs) > 1:
        axes.fill_between(
            curve.round, curve.low, curve.high, color=style.look.light, alpha=0.15, linewidth=0
        )


def _diagnostic_scale(axes: Axes) -> None:
    """Logarithmic over a wide range, as on the page."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    low, high = axes.dataLim.intervaly
    if high > 30 * low > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
