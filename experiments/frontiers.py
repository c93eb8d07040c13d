"""Accuracy against bytes for several files of results: how far each generation of settings goes.

    python experiments/frontiers.py --out results/cifar10-frontier.png \
        --group "the paper's method" results/cifar10-paper.jsonl fetchsgd-paper \
        --group "0.1: few bits" results/cifar10-low-bit.jsonl fetchsgd-paper,true_topk \
        --group "0.2: the server sees only sums" results/cifar10-frontier.jsonl fetchsgd \
        --group "0.2: it sees each message" results/cifar10-frontier.jsonl uncompressed,true_topk

A point is the mean over the seeds of one setting, on the wire; a line joins those that no other of
its group beats in both accuracy and compression. The level is the mean of all uncompressed runs.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import matplotlib.pyplot as plt

from fetchsgd.report.runs import Run, find_runs

COLOURS = ("0.45", "#0072b2", "#009e73", "#d55e00")
PANELS = {"upload": "upload compression", "overall": "overall compression"}
FLOOR = 0.6  # accuracies below this one are not drawn


class Point(NamedTuple):
    """A setting: how much it compresses, and what it reaches."""

    compression: float
    value: float


def points(runs: list[Run], panel: str) -> list[Point]:
    """The mean over seeds of each setting of which no run diverged."""
    by_setting = defaultdict(list)
    for run in runs:
        setting = {k: v for k, v in run.settings.items() if k != "train.seed"}
        by_setting[repr(sorted(setting.items()))].append(run)
    kept = [
        group
        for group in by_setting.values()
        if all(run.can_be_drawn(panel, "wire") for run in group)
    ]
    found = [
        Point(fmean(_compression(run, panel) for run in group), fmean(_value(run) for run in group))
        for group in kept
    ]
    return sorted(point for point in found if point.value >= FLOOR)


def frontier(found: list[Point]) -> list[Point]:
    """From the most compressed on, whatever is better than all before."""
    best: list[Point] = []
    for point in sorted(found, reverse=True):
        if not best or point.value > best[-1].value:
            best.append(point)
    return best


def _compression(run: Run, panel: str) -> float:
    found = run.compression(panel, "wire")
    assert found is not None
    return found


def _value(run: Run) -> float:
    assert run.value is not None
    return run.value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--group", nargs=3, action="append", required=True, metavar=("LABEL", "FILE", "METHODS")
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    shape, axes = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained", sharey=True)
    plain: dict[tuple[str, int], float] = {}  # by file and seed
    for colour, (label, file, methods) in zip(COLOURS, options.group, strict=False):
        runs = find_runs([Path(file)])
        sgd = [run for run in runs if run.method == "uncompressed" and run.value]
        whole = [run for run in sgd if _compression(run, "upload") < 1.01]
        plain |= {(file, run.seed): _value(run) for run in whole}
        chosen = [run for run in runs if run.method in methods.split(",")]
        for panel, ax in zip(PANELS, axes, strict=True):
            found = points(chosen, panel)
            ax.plot(*zip(*[(p.compression, 100 * p.value) for p in found], strict=True),
                    "o", color=colour, alpha=0.35, markersize=4)  # fmt: skip
            line = [(p.compression, 100 * p.value) for p in frontier(found)]
            ax.plot(*zip(*line, strict=True), "o-", color=colour, label=label, markersize=5)
    level = fmean(plain.values())
    for title, ax in zip(PANELS.values(), axes, strict=True):
        ax.set_xscale("log")
        ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500) if t <= ax.get_xlim()[1]]
        ax.set_xticks(ticks, [f"{t}×" for t in ticks])
        ax.minorticks_off()
        ax.set_xlabel(f"{title}, on the wire")
        ax.grid(alpha=0.3)
        ax.axhline(100 * level, color="0.3", linestyle=":", label="uncompressed")
    axes[0].set_ylabel("test accuracy, %")
    axes[1].legend(frameon=False, fontsize=8, loc="lower right")
    shape.savefig(options.out, dpi=160)


if __name__ == "__main__":
    main()
