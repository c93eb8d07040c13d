"""The paper's figures for print: the metric against compression."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fetchsgd.report import text
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
from fetchsgd.report.seeds import Group
from fetchsgd.report.styles import Style, series_styles
from fetchsgd.report.tasks import Task
from fetchsgd.report.traffic import KINDS, WIRE


def scatter(task: Task, kind: str, count: str) -> Figure:
    """One kind of compression: every group of runs, and the frontier of each series."""
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for series, style in series_styles(task.series).items():
        front = task.frontier_of(series, kind, count)
        own = [group for group in task.groups if group.series == series]
        others = [group for group in own if group not in front]
        _points(axes, task, (kind, count), others, style, strong=False)
        _points(axes, task, (kind, count), front, style, strong=True)
    _compression_axis(axes, kind, count)
    quality_axis(axes, task)
    finish(figure, axes, task)
    return figure


def frontiers(task: Task) -> Figure:
    """Nothing but frontiers, on the wire: how far to the right fewer bits lead."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, len(KINDS), sharey=True)
    for kind, axes in zip(KINDS, panels, strict=True):
        for series, style in series_styles(task.series).items():
            front = task.frontier_of(series, kind, WIRE)
            _points(axes, task, (kind, WIRE), front, style, strong=True)
        _compression_axis(axes, kind, WIRE)
    quality_axis(panels[0], task)
    finish(figure, panels[0], task)
    return figure


def _compression_axis(axes: Axes, kind: str, count: str) -> None:
    log_axis(axes, text.times, crowded=1000)
    axes.set_xlabel(f"{kind.capitalize()} compression, {text.COUNTED[count]}")
    grid(axes)


def _points(
    axes: Axes,
    task: Task,
    figure: tuple[str, str],  # its kind of compression and its count
    groups: Sequence[Group],
    style: Style,
    strong: bool,
) -> None:
    """Groups at their means, each with a bar from its worst to its best seed."""
    points = [point for group in groups if (point := group.point(*figure))]
    if not points:
        return
    x = [point.compression for point in points]
    alpha = 1 if strong else 0.3
    axes.vlines(
        x,
        [shown(point.low, task) for point in points],
        [shown(point.high, task) for point in points],
        color=style.look.light,
        linewidth=0.9,
        alpha=alpha,
        zorder=2,
    )
    axes.plot(
        x,
        [shown(point.value, task) for point in points],
        color=style.look.light,
        linestyle=linestyle(style) if strong else "none",
        alpha=alpha,
        label=literal(style.label) if strong else None,
        zorder=3 if strong else 2,
        **marker(style, 6 if strong else 4.5),
    )
