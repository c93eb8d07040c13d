"""The page's figures as PNG and PDF, for papers and slides. No other module needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fetchsgd.report import text
from fetchsgd.report.curves import metric_curve
from fetchsgd.report.runs import DIVERGED, KINDS, Run
from fetchsgd.report.styles import MATPLOTLIB_MARKERS, Style, method_styles
from fetchsgd.report.tasks import Task

_GRID = "#d9dde1"


def write_figures(task: Task, stem: Path) -> list[Path]:
    """Write `<stem>-upload.png` and so on, and say what was written."""
    written = []
    with matplotlib.rc_context({"font.size": 9, "pdf.fonttype": 42}):
        for kind in KINDS:
            written += _save(_scatter(task, kind), stem, kind)
        written += _save(_curves(task), stem, "curves")
    return written


def _save(figure: Figure, stem: Path, name: str) -> list[Path]:
    paths = [stem.with_name(f"{stem.name}-{name}.{ending}") for ending in ("png", "pdf")]
    # Without its date, the same runs give the same file.
    figure.savefig(paths[0], dpi=200)
    figure.savefig(paths[1], metadata={"CreationDate": None})
    return paths


def _scatter(task: Task, kind: str) -> Figure:
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for method, style in method_styles(task.methods).items():
        front = task.frontier_of(method, kind)
        others = [
            run
            for run in task.runs
            if run.method == method and run.can_be_drawn(kind) and run not in front
        ]
        _points(axes, task, kind, others, style, strong=False)
        _points(axes, task, kind, front, style, strong=True)
    _quality_axis(axes, task)
    _log_axis(axes, text.times, crowded=1000)
    axes.set_xlabel(f"{kind.capitalize()} compression")
    _finish(figure, axes, task)
    return figure


def _points(
    axes: Axes, task: Task, kind: str, runs: Sequence[Run], style: Style, strong: bool
) -> None:
    axes.plot(
        [run.compression[kind] or 0.0 for run in runs],
        [_shown(run.value or 0.0, task) for run in runs],
        color=style.light,
        marker=MATPLOTLIB_MARKERS[style.marker],
        markersize=6 if strong else 4.5,
        markeredgecolor="white",
        markeredgewidth=0.6,
        linestyle=_linestyle(style) if strong else "none",
        alpha=1 if strong else 0.3,
        label=_literal(style.label) if strong else None,
        zorder=3 if strong else 2,
    )


def _curves(task: Task) -> Figure:
    """The metric against rounds and against bytes, with runs that are not in front drawn faint."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    by_round, by_bytes = figure.subplots(1, 2, sharey=True)
    styles = method_styles(task.methods)
    front = task.in_front("overall")
    for index, run in enumerate(task.runs):
        _curve(by_round, by_bytes, task, run, styles[run.method], strong=index in front)
    for style in styles.values():
        marker = MATPLOTLIB_MARKERS[style.marker]
        by_round.plot(
            [],
            [],
            color=style.light,
            linestyle=_linestyle(style),
            marker=marker,
            markersize=5,
            label=_literal(style.label),
        )
    _quality_axis(by_round, task)
    _log_axis(by_bytes, lambda count: text.size(round(count)), crowded=50)
    by_round.xaxis.set_major_locator(MaxNLocator(integer=True))
    by_round.set_xlabel("Rounds")
    by_bytes.set_xlabel("Bytes sent, both ways")
    _grid(by_bytes)
    _finish(figure, by_round, task)
    return figure


def _curve(
    by_round: Axes, by_bytes: Axes, task: Task, run: Run, style: Style, strong: bool
) -> None:
    curve = metric_curve(run)
    look: dict[str, Any] = {
        "color": style.light,
        "alpha": 1 if strong else 0.3,
        "zorder": 3 if strong else 2,
        # A run that diverges would squeeze all others flat, so it does not set the scale.
        "scaley": run.status != DIVERGED,
    }
    for axes, xs in ((by_round, curve.round), (by_bytes, curve.bytes)):
        # What was measured before anything was sent has no place on a logarithmic axis.
        points = [
            (x, _shown(y, task)) for x, y in zip(xs, curve.y, strict=True) if x or axes is by_round
        ]
        x, y = [x for x, _ in points], [y for _, y in points]
        axes.plot(x, y, linestyle=_linestyle(style), linewidth=1.6 if strong else 0.9, **look)
        axes.plot(x[-1:], y[-1:], marker=MATPLOTLIB_MARKERS[style.marker], markersize=5, **look)


def _shown(value: float, task: Task) -> float:
    return 100 * value if task.metric == "accuracy" else value


def _quality_axis(axes: Axes, task: Task) -> None:
    low, high = axes.dataLim.intervaly
    if not task.higher_is_better and high > 30 * low > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(_literal(text.axis_title(task.metric, task.higher_is_better)))


def _log_axis(axes: Axes, words: Callable[[float], str], crowded: float) -> None:
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


def _finish(figure: Figure, axes: Axes, task: Task) -> None:
    _grid(axes)
    axes.set_title(_literal(task.name), loc="left", fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=5 if figure.get_figwidth() > 8 else 3,
            frameon=False,
            handlelength=3.2,
            columnspacing=1.4,
        )


def _grid(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def _linestyle(style: Style) -> str | tuple[int, tuple[float, ...]]:
    # matplotlib measures dashes in line widths, the page in pixels.
    return (0, tuple(length / 2 for length in style.dash)) if style.dash else "-"


def _literal(words: str) -> str:
    """Names are not formulas, even with a dollar in them."""
    return words.replace("$", r"\$")
