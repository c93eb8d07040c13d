"""What the figures for print share: axes, legends, and the looks of a series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fetchsgd.report import text
from fetchsgd.report.styles import MATPLOTLIB_MARKERS, Style
from fetchsgd.report.tasks import Task

_GRID = "#d9dde1"


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


def log_axis(axes: Axes, words: Callable[[float], str], crowded: float) -> None:
    """Ticks at 1, 2, 5, 10, ..., or only at powers of ten if the ends are `crowded` times apart."""
    axes.set_xscale("log")
    axes.margins(x=0.08)
    low, high = axes.get_xlim()
    if high > crowded * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,), numticks=8))
    else:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
    axes.xaxis.set_minor_locator(NullLocator())


def finish(figure: Figure, axes: Axes, task: Task) -> None:
    """Title and legend; the legend's entries are those of `axes`."""
    axes.set_title(literal(task.name), loc="left", fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    columns = _columns(labels, figure.get_figwidth())
    rows = -(-len(labels) // columns)
    # Two rows are in the figure's height; more of them shall not make the axes flatter.
    figure.set_figheight(figure.get_figheight() + 0.19 * max(0, rows - 2))
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=3.2,
        columnspacing=1.4,
    )


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
