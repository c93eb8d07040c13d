"""What the figures for print share: axes, legends, and the looks of a series."""

from __future__ import annotations

import math
from collections.abc import Callable
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fetchsgd.report import text
from fetchsgd.report.styles import MATPLOTLIB_MARKERS, Style
from fetchsgd.report.tasks import Task

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
    axes.set_ylabel(literal(text.axis_title(task.metric, task.higher_is_better)))


def log_axis(axes: Axes, words: Callable[[float], str], inches: float) -> None:
    """As many round ticks as have room for their words on an axis that is `inches` long."""
    axes.set_xscale("log")
    axes.margins(x=0.08)
    low, high = axes.get_xlim()
    decade = inches / math.log10(high / low)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    longest = max(len(words(10.0**power)) for power in powers)
    gap = max(0.36, 0.06 + 0.075 * longest)  # inches
    subs = next((ticks for ticks, part in _TICKS if part * decade >= gap), (1.0,))
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=12 if len(subs) > 1 else 8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axes.xaxis.set_minor_locator(NullLocator())


def finish(figure: Figure, axes: Axes, task: Task, note: str) -> None:
    """Title and legend; the legend's entries are those of `axes`, and above them is the note."""
    axes.set_title(literal(task.name), loc="left", fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    columns = _columns(labels, figure.get_figwidth())
    rows = -(-len(labels) // columns)
    # Two rows are in the figure's height; more of them shall not make the axes flatter.
    figure.set_figheight(figure.get_figheight() + 0.19 * max(0, rows - 2))
    legend = figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=3.2,
        columnspacing=1.4,
        title=fill(note, int(19 * figure.get_figwidth())) or None,  # some 19 letters an inch
        title_fontproperties={"size": 7.5},
    )
    legend.get_title().set(color=_SOFT, multialignment="center")


def grid(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def marker(style: Style, size: float) -> dict[str, Any]:
    """How matplotlib shall draw a marker of this series; a hollow one is all edge."""
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
    """Names are not formulas, even with a dollar in them."""
    return words.replace("$", r"\$")


def _columns(labels: list[str], inches: float) -> int:
    """As many as fit: a letter takes some 0.065 inches, and the sample of the line 0.65."""
    widest = 0.65 + 0.065 * max(map(len, labels))
    return max(1, min(len(labels), int(inches / widest)))
