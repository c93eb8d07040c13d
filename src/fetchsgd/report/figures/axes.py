"""What the figures for print share: axes, legends, the looks of a series, and notes.

A figure has a note about itself because it may appear alone, in a paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fetchsgd.formatting import plural
from fetchsgd.report.groups import Group, Task
from fetchsgd.report.runs import DIVERGED
from fetchsgd.report.styles import MATPLOTLIB_MARKERS, Style

_GRID = "#d9dde1"
_SOFT = "#5d656d"

# Ticks of a decade, and the least part of it between two of them.
_TICKS = (((1.0, 1.5, 2.0, 3.0, 5.0, 7.0), 0.124), ((1.0, 2.0, 5.0), 0.3), ((1.0, 3.0), 0.47))


def shown(value: float, task: Task) -> float:
    return 100 * value if task.metric == "accuracy" else value


def quality_axis(axes: Axes, task: Task) -> None:
    low, high = axes.dataLim.intervaly
    if not task.higher_is_better and high > 30 * low > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(literal(task.axis_title))


def log_axis(axes: Axes, label: Callable[[float], str], inches: float) -> None:
    """As many round ticks as fit with their labels on an axis that is `inches` long."""
    axes.set_xscale("log")
    axes.margins(x=0.08)
    low, high = axes.get_xlim()
    decade = inches / math.log10(high / low)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    longest = max(len(label(10.0**power)) for power in powers)
    gap = max(0.36, 0.06 + 0.075 * longest)  # inches
    subs = next((ticks for ticks, part in _TICKS if part * decade >= gap), (1.0,))
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=12 if len(subs) > 1 else 8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: label(value)))
    axes.xaxis.set_minor_locator(NullLocator())


def finish(figure: Figure, axes: Axes, task: Task, note: str, key: str = "") -> None:
    """Title and legend; the legend's entries are those of `axes`, with the note above them.

    `key` says what the numbers in the figure mean.
    """
    axes.set_title(literal(task.name), loc="left", fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    columns = _columns(labels, figure.get_figwidth())
    rows = -(-len(labels) // columns)
    width = int(17 * figure.get_figwidth())  # some 17 letters an inch
    parts = [*key.split("\n"), note, _baselines(task)]
    above = "\n".join(fill(part, width) for part in parts if part)
    # The figure's height has room for two rows and a note of one line; more of them must not
    # flatten the axes.
    more = 0.19 * max(0, rows - 2) + 0.13 * above.count("\n")
    figure.set_figheight(figure.get_figheight() + more)
    legend = figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=3.2,
        columnspacing=1.4,
        title=literal(above) or None,
        title_fontproperties={"size": 7.5},
    )
    legend.get_title().set(color=_SOFT, multialignment="center")


def grid(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def marker(style: Style, size: float) -> dict[str, Any]:
    """How matplotlib draws a marker of this series; a hollow one has only an edge."""
    return {
        "marker": MATPLOTLIB_MARKERS[style.marker],
        "markersize": size - 0.5 if style.hollow else size,
        "markerfacecolor": "white" if style.hollow else style.look.light,
        "markeredgecolor": style.look.light if style.hollow else "white",
        "markeredgewidth": 1.2 if style.hollow else 0.6,
    }


def linestyle(style: Style) -> str | tuple[int, tuple[float, ...]]:
    # matplotlib measures dashes in line widths, the page in pixels.
    return (0, tuple(length / 2 for length in style.look.dash)) if style.look.dash else "-"


def literal(words: str) -> str:
    """A name is not a formula, even with a dollar in it."""
    return words.replace("$", r"\$")


def scatter_note(task: Task, kind: str, count: str) -> str:
    """For a figure in which every group is a point."""
    front = task.on_frontier(kind, count)
    drawn = {index for index, group in enumerate(task.groups) if group.point(kind, count)}
    faint = "Faint: not on the frontier of its method." if drawn - front else ""
    return _sentences(_seeds(task, "bars"), faint, _diverged(task, "not drawn"))


def frontiers_note(task: Task) -> str:
    left_out = sum(not trains(group, task) for group in task.groups)
    far = f"{plural(left_out, 'setting')} left out: a seed is below half the best accuracy."
    return _sentences(_seeds(task, "bars"), far if left_out else "", _diverged(task, "not drawn"))


def trains(group: Group, task: Task) -> bool:
    """Whether all its seeds learn something; others would squeeze the rest of the figure."""
    points = [point for other in task.groups if (point := other.point("overall", task.count))]
    own = group.point("overall", task.count)
    if own is None or task.metric != "accuracy":
        return True
    return own.low >= max(point.value for point in points) / 2


def curves_note(task: Task) -> str:
    faint = "Faint: not on the frontier of overall compression."
    behind = len(task.on_frontier("overall", task.count)) < len(task.groups)
    ended = _diverged(task, "faint, ends early")
    return _sentences(_seeds(task, "shades"), faint if behind else "", ended)


def _baselines(task: Task) -> str:
    """A warning where compressions are relative to different things."""
    lengths = task.baselines
    if len(lengths) < 2:
        return ""
    told = ", ".join(f"{length:g}" for length in lengths)
    return f"Caution: compression is relative to baselines of different length ({told} epochs)."


def _seeds(task: Task, drawn_as: str) -> str:
    """How many runs a point is the mean of."""
    averaged = [len(group.drawn("overall", task.count)) for group in task.groups]
    known = [number for number in averaged if number]
    if not known or max(known) == 1:
        return ""
    least, most = min(known), max(known)
    numbers = str(most) if least == most else f"{least} to {most}"
    return f"Means of {numbers} seeds; {drawn_as} from the worst to the best seed."


def _diverged(task: Task, how: str) -> str:
    number = sum(run.status == DIVERGED for run in task.runs)
    return f"{plural(number, 'run')} diverged ({how})." if number else ""


def _sentences(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _columns(labels: list[str], inches: float) -> int:
    """As many as fit: a letter takes some 0.065 inches, and the sample of the line 0.65."""
    widest = 0.65 + 0.065 * max(map(len, labels))
    return max(1, min(len(labels), int(inches / widest)))
