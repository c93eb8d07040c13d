"""Figures over one setting: the metric against k, against the block of the hash, and so on.

    python experiments/figures.py results/cifar10-blocks.jsonl --over method.block \
        --lines method.cols --out results/cifar10-blocks.png
    python experiments/figures.py results/cifar10-paper.jsonl results/cifar10-claims.jsonl \
        --method true_topk --over method.k --lines method.mask_momentum \
        --level uncompressed --out results/cifar10-over-k.png

Each point is the mean over seeds, with bars from the worst to the best. A cross at the bottom marks
runs that diverged, and says how many. `--level METHOD` draws the best run of another method as
a line. The figures in the paper's own form, over compression, come from `fetchsgd report`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from fetchsgd.report.runs import DIVERGED, Run, find_runs
from fetchsgd.report.settings import setting_name, setting_value

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
Points = dict[float, list[Run]]  # runs by what is on the axis


def lines_of(runs: Iterable[Run], over: str, lines: str | None) -> dict[Any, Points]:
    """Runs by the value of one setting, in lines by that of another."""
    found: dict[Any, Points] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if over in run.settings:
            line = run.settings.get(lines) if lines else None
            found[line][float(run.settings[over])].append(run)
    return {line: dict(sorted(points.items())) for line, points in sorted(found.items())}


def draw(axes: Axes, points: Points, colour: str, label: str, scale: float) -> None:
    values = {
        at: [scale * run.value for run in runs if run.value is not None and run.status != DIVERGED]
        for at, runs in points.items()
    }
    kept = {at: found for at, found in values.items() if found}
    means = [sum(found) / len(found) for found in kept.values()]
    low = [mean - min(found) for mean, found in zip(means, kept.values(), strict=True)]
    high = [max(found) - mean for mean, found in zip(means, kept.values(), strict=True)]
    axes.errorbar(list(kept), means, [low, high], color=colour, marker="o", capsize=3, label=label)
    for at, runs in points.items():
        lost = sum(run.status == DIVERGED for run in runs)
        if lost:
            bottom: Any = axes.get_xaxis_transform()
            axes.plot([at], [0.03], "x", color=colour, transform=bottom, clip_on=False)
            many = f"{lost} of {len(runs)}"
            axes.text(at, 0.06, many, fontsize=7, ha="center", transform=bottom)


def figure(sources: list[Path], options: argparse.Namespace) -> None:
    runs = find_runs(sources)
    chosen = [run for run in runs if options.method in (None, run.method)]
    is_share = all(run.metric == "accuracy" for run in chosen)
    scale = 100.0 if is_share else 1.0
    shape, axes = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
    lines = lines_of(chosen, options.over, options.lines)
    for colour, (value, points) in zip(COLOURS, lines.items(), strict=False):
        label = f"{setting_name(options.lines)} {setting_value(value)}" if options.lines else ""
        draw(axes, points, colour, label, scale)
    if options.level:
        best = [run.value for run in runs if run.method == options.level and run.value is not None]
        level = scale * (max(best) if runs[0].higher_is_better else min(best))
        axes.axhline(level, color="0.5", linestyle="--", label=options.level)
    ticks = sorted({at for points in lines.values() for at in points})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{int(at):,}" for at in ticks], rotation=30)
    axes.minorticks_off()
    axes.set_xlabel(setting_name(options.over))
    axes.set_ylabel(f"{chosen[0].metric}, %" if is_share else str(chosen[0].metric))
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[1] not in ([], [""]):
        axes.legend(frameon=False, fontsize=8)
    shape.savefig(options.out, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--over", required=True, help="the setting on the axis, as method.k")
    parser.add_argument("--lines", help="a line for each value of this setting")
    parser.add_argument("--method", help="runs of this method alone")
    parser.add_argument("--level", help="a method whose best run is drawn as a level")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    figure(options.results, options)


if __name__ == "__main__":
    main()
