"""The paper's figures for print: the metric against compression."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fetchsgd.formatting import format_ratio
from fetchsgd.report.figures.axes import (
    finish,
    frontiers_note,
    grid,
    linestyle,
    literal,
    log_axis,
    marker,
    quality_axis,
    scatter_note,
    shown,
    trains,
)
from fetchsgd.report.figures.labels import Frontier, label_frontiers
from fetchsgd.report.figures.tags import Tag, key, tagged, write_tags
from fetchsgd.report.groups import Group, Point, Task
from fetchsgd.report.styles import Style, series_styles
from fetchsgd.report.traffic import COUNTED, KINDS, WIRE


def scatter(task: Task, kind: str, count: str) -> Figure:
    """One kind of compression: every group of runs, and the frontier of each series.

    Where a method has several groups they are numbered.
    """
    figure = Figure(figsize=(5.2, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for series, style in series_styles(task.series).items():
        front = task.frontier_of(series, kind, count)
        own = [group for group in task.groups if group.series == series]
        others = [group for group in own if group not in front]
        _points(axes, task, _places(others, kind, count), style, strong=False)
        _points(axes, task, _places(front, kind, count), style, strong=True)
    _compression_axis(axes, kind, count, inches=4.5)
    quality_axis(axes, task)
    numbers = tagged(task, task.on_frontier(kind, count))
    finish(figure, axes, task, scatter_note(task, kind, count), key(task, numbers))
    figure.draw_without_rendering()  # only now are the places of points on paper known
    _tag_points(axes, task, kind, count, numbers)
    return figure


def _tag_points(axes: Axes, task: Task, kind: str, count: str, numbers: dict[int, int]) -> None:
    styles, front = series_styles(task.series), task.on_frontier(kind, count)
    drawn = {
        index: (point.compression, shown(point.value, task))
        for index, group in enumerate(task.groups)
        if (point := group.point(kind, count))
    }
    tags = [
        Tag(number, drawn[index], styles[task.groups[index].series].look.light, index in front)
        for index, number in numbers.items()
        if index in drawn
    ]
    write_tags(axes, tags, list(drawn.values()))


def frontiers(task: Task) -> Figure:
    """Only the frontiers, on the wire: how much further fewer bits compress."""
    figure = Figure(figsize=(9, 3.9), layout="constrained")
    panels = figure.subplots(1, len(KINDS), sharey=True)
    styles = series_styles(task.series)
    lines: list[list[Frontier]] = []
    for kind, axes in zip(KINDS, panels, strict=True):
        lines.append([])
        for series, style in styles.items():
            front = [group for group in task.frontier_of(series, kind, WIRE) if trains(group, task)]
            points = _places(front, kind, WIRE)
            _points(axes, task, points, style, strong=True)
            lines[-1] += _labelled(task, points, style)
        _compression_axis(axes, kind, WIRE, inches=2.7)
    quality_axis(panels[0], task)
    finish(figure, panels[0], task, frontiers_note(task))
    figure.draw_without_rendering()  # only now are the places of points on paper known
    for axes, own in zip(panels, lines, strict=True):
        label_frontiers(axes, own)
    return figure


def _places(groups: Sequence[Group], kind: str, count: str) -> list[Point]:
    return [point for group in groups if (point := group.point(kind, count))]


def _labelled(task: Task, points: Sequence[Point], style: Style) -> list[Frontier]:
    """Both ends of a frontier with their compression; the axis shows where 1x is."""
    ends = {index % len(points): points[index].compression for index in (-1, 0) if points}
    labels = {index: format_ratio(ratio) for index, ratio in ends.items()}
    labels = {index: label for index, label in labels.items() if label != format_ratio(1)}
    places = [(point.compression, shown(point.value, task)) for point in points]
    return [Frontier(places, labels, style.look.light)] if points else []


def _compression_axis(axes: Axes, kind: str, count: str, inches: float) -> None:
    log_axis(axes, format_ratio, inches)
    axes.set_xlabel(f"{kind.capitalize()} compression, {COUNTED[count]}")
    grid(axes)


def _points(axes: Axes, task: Task, points: Sequence[Point], style: Style, strong: bool) -> None:
    """Groups at their means, each with a bar from its worst to its best seed."""
    if not points:
        return
    x = [point.compression for point in points]
    alpha = 1 if strong else 0.35
    # Where a hollow marker and a full one meet, both can be seen if the hollow one is below.
    level = (3 if strong else 2) + (0 if style.hollow else 0.5)
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
        zorder=level,
        **marker(style, 6 if strong else 4.5),
    )
