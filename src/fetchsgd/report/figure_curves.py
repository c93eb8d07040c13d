"""Training curves for print: the metric against rounds and against bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fetchsgd.report import text
from fetchsgd.report.curves import mean_curve
from fetchsgd.report.figure_axes import (
    finish,
    grid,
    linestyle,
    literal,
    log_axis,
    marker,
    quality_axis,
    shown,
)
from fetchsgd.report.figure_notes import curves_note
from fetchsgd.report.runs import DIVERGED, Run
from fetchsgd.report.styles import Style, series_styles
from fetchsgd.report.tasks import Task


def curves(task: Task) -> Figure:
    """A curve for the mean of each group; what is not in front is faint."""
    figure = Figure(figsize=(9, 3.9), layout="constrained")
    by_round, by_bytes = figure.subplots(1, 2, sharey=True)
    for runs, style, strong in lines_of(task):
        _curve(by_round, by_bytes, task, runs, style, strong)
    legend_entries(by_round, series_styles(task.series).values())
    quality_axis(by_round, task)
    log_axis(by_bytes, lambda number: text.size(round(number)), inches=4.1)
    by_round.xaxis.set_major_locator(MaxNLocator(integer=True))
    by_round.set_xlabel("Rounds")
    by_bytes.set_xlabel(f"Bytes sent both ways, {text.COUNTED[task.count]}")
    for axes in (by_round, by_bytes):
        grid(axes)
    finish(figure, by_round, task, curves_note(task))
    return figure


def lines_of(task: Task) -> Iterator[tuple[Sequence[Run], Style, bool]]:
    """What is one line each: seeds that are averaged, or a run; and whether it is strong."""
    styles = series_styles(task.series)
    front = task.in_front("overall", task.count)
    for index, group in enumerate(task.groups):
        averaged = group.drawn("overall", task.count)
        lines = [averaged] if averaged else []
        lines += [[run] for run in group.runs if run not in averaged]
        for runs in lines:
            yield runs, styles[group.series], index in front and runs is averaged


def legend_entries(axes: Axes, styles: Iterable[Style]) -> None:
    """A line of no points for each series."""
    for style in styles:
        axes.plot(
            [],
            [],
            color=style.look.light,
            linestyle=linestyle(style),
            label=literal(style.label),
            **marker(style, 5),
        )


def _curve(
    by_round: Axes,
    by_bytes: Axes,
    task: Task,
    runs: Sequence[Run],
    style: Style,
    strong: bool,
) -> None:
    """One run, or the mean of its seeds with a shade from the worst to the best."""
    curve = mean_curve(runs, task.count)
    line, end = looks(style, strong)
    calm = any(run.status != DIVERGED for run in task.runs)
    for axes, xs in ((by_round, curve.round), (by_bytes, curve.bytes)):
        # What was measured before anything was sent has no place on a logarithmic axis, and what
        # was not counted has none on any.
        rows = [
            (x, *(shown(value, task) for value in values))
            for x, *values in zip(xs, curve.y, curve.low, curve.high, strict=True)
            if x or (x == 0 and axes is by_round)
        ]
        x, y, low, high = ([row[column] for row in rows] for column in range(4))
        for place, look in ((slice(None), line), (slice(-1, None), end)):
            # A run that diverges would squeeze all others flat; a mere artist sets no scale.
            if calm and runs[0].status == DIVERGED:
                axes.add_artist(Line2D(x[place], y[place], **look))
            else:
                axes.plot(x[place], y[place], **look)
        if strong and len(runs) > 1:
            axes.fill_between(x, low, high, color=style.look.light, alpha=0.15, linewidth=0)


def looks(style: Style, strong: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """How a curve looks, and the marker at its end."""
    both = {
        "color": style.look.light,
        "alpha": 1 if strong else 0.3,
        "zorder": 3 if strong else 2,
    }
    line = {"linestyle": linestyle(style), "linewidth": 1.6 if strong else 0.9}
    return {**both, **line}, {**both, **marker(style, 5)}
