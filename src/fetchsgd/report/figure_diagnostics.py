"""Diagnostics for print: a small figure for each quantity, against rounds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fetchsgd.report.curves import diagnostic_curve, mean_curve
from fetchsgd.report.diagnostics import measured_in
from fetchsgd.report.figure_axes import finish, grid
from fetchsgd.report.figure_curves import legend_entries, lines_of, looks
from fetchsgd.report.figure_notes import curves_note
from fetchsgd.report.runs import DIVERGED, Run
from fetchsgd.report.styles import Style, series_styles
from fetchsgd.report.tasks import Task

_COLUMNS = 3


def diagnostics(task: Task) -> Figure:
    """For tasks of which some runs were diagnosed."""
    quantities = measured_in(task.runs)
    columns = min(_COLUMNS, len(quantities))
    rows = -(-len(quantities) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.3 * rows + 0.9), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (name, quantity) in zip(places, quantities.items(), strict=False):
        for runs, style, strong in lines_of(task):
            _curve(axes, name, runs, style, strong, task)
        _scale(axes)
        axes.set_ylabel(quantity.axis)
        axes.set_xlabel("Rounds")
        grid(axes)
    for axes in places[len(quantities) :]:
        axes.set_visible(False)
    diagnosed = {run.series for run in task.runs if measured_in([run])}
    styles = series_styles(task.series)
    legend_entries(places[0], [style for series, style in styles.items() if series in diagnosed])
    finish(figure, places[0], task, curves_note(task))
    # The first of many small figures is no place for the title of all.
    figure.suptitle(places[0].get_title(loc="left"), x=0.01, ha="left", fontsize=10)
    places[0].set_title("", loc="left")
    for axes, quantity in zip(places, quantities.values(), strict=False):
        axes.set_title(quantity.title, fontsize=9)
    return figure


def _curve(
    axes: Axes, name: str, runs: Sequence[Run], style: Style, strong: bool, task: Task
) -> None:
    """Seeds of which not all were diagnosed have no common rounds, and no line."""
    curve = mean_curve(runs, task.count, partial(diagnostic_curve, name=name))
    calm = any(run.status != DIVERGED for run in task.runs)
    if not curve.round or (calm and runs[0].status == DIVERGED):
        return
    line, end = looks(style, strong)
    axes.plot(curve.round, curve.y, **line)
    axes.plot(curve.round[-1:], curve.y[-1:], **end)
    if strong and len(runs) > 1:
        axes.fill_between(
            curve.round, curve.low, curve.high, color=style.look.light, alpha=0.15, linewidth=0
        )


def _scale(axes: Axes) -> None:
    """Logarithmic where it spans much, as on the page."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    low, high = axes.dataLim.intervaly
    if high > 30 * low > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
