"""Training curves for print: the metric against rounds and against bytes."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fetchsgd.report import text
from fetchsgd.report.curves import metric_curve
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
from fetchsgd.report.runs import DIVERGED, Run
from fetchsgd.report.styles import Style, series_styles
from fetchsgd.report.tasks import Task


def curves(task: Task) -> Figure:
    """A curve for each run, with runs that are not in front drawn faint."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    by_round, by_bytes = figure.subplots(1, 2, sharey=True)
    styles = series_styles(task.series)
    front = task.in_front("overall", task.count)
    for index, group in enumerate(task.groups):
        averaged = group.drawn("overall", task.count)
        for run in group.runs:
            strong = index in front and run in averaged
            _curve(by_round, by_bytes, task, run, styles[group.series], strong)
    for style in styles.values():
        by_round.plot(
            [],
            [],
            color=style.look.light,
            linestyle=linestyle(style),
            label=literal(style.label),
            **marker(style, 5),
        )
    quality_axis(by_round, task)
    log_axis(by_bytes, lambda number: text.size(round(number)), crowded=50)
    by_round.xaxis.set_major_locator(MaxNLocator(integer=True))
    by_round.set_xlabel("Rounds")
    by_bytes.set_xlabel(f"Bytes sent both ways, {text.COUNTED[task.count]}")
    for axes in (by_round, by_bytes):
        grid(axes)
    finish(figure, by_round, task)
    return figure


def _curve(
    by_round: Axes, by_bytes: Axes, task: Task, run: Run, style: Style, strong: bool
) -> None:
    curve = metric_curve(run)
    look: dict[str, Any] = {
        "color": style.look.light,
        "alpha": 1 if strong else 0.3,
        "zorder": 3 if strong else 2,
        # A run that diverges would squeeze all others flat, so it does not set the scale.
        "scaley": run.status != DIVERGED,
    }
    for axes, xs in ((by_round, curve.round), (by_bytes, curve.bytes.get(task.count, []))):
        # What was measured before anything was sent has no place on a logarithmic axis, and what
        # was not counted has none on any.
        points = [
            (x, shown(y, task))
            for x, y in zip(xs, curve.y, strict=False)
            if x or (x == 0 and axes is by_round)
        ]
        x, y = [x for x, _ in points], [y for _, y in points]
        axes.plot(x, y, linestyle=linestyle(style), linewidth=1.6 if strong else 0.9, **look)
        axes.plot(x[-1:], y[-1:], **marker(style, 5), **look)
