"""Accuracy against bytes for several files of results: how far each generation of settings goes.

    F=results/cifar10
    python experiments/frontiers.py --out $F-frontier.png --level $F-paper.jsonl \
        --group "the paper's method" $F-paper.jsonl fetchsgd-paper \
        --group "0.1: few bits" $F-low-bit.jsonl fetchsgd-paper,true_topk \
        --group "0.2: the server sees only sums" \
            $F-frontier.jsonl,$F-cohorts.jsonl,$F-sums.jsonl,$F-steps-resnet9.jsonl fetchsgd \
        --group "0.2: it sees each message" \
            $F-frontier.jsonl,$F-cohorts.jsonl,$F-steps-resnet9.jsonl uncompressed,true_topk
    F=results/cifar100
    python experiments/frontiers.py --out $F-frontier.png --level $F-paper.jsonl --floor 0.3 \
        --group "the paper's method" $F-paper.jsonl fetchsgd-paper \
        --group "local top-k" $F-paper.jsonl local_topk \
        --group "the server sees only sums" $F-frontier.jsonl fetchsgd \
        --group "it sees each message" $F-frontier.jsonl uncompressed,true_topk
    F=results/femnist
    python experiments/frontiers.py --out $F-frontier.png --level $F-standin.jsonl --floor 0.8 \
        --group "the paper's method" $F-standin.jsonl fetchsgd-paper \
        --group "local top-k" $F-standin.jsonl local_topk \
        --group "the server sees only sums" $F-frontier.jsonl,$F-sums.jsonl fetchsgd \
        --group "it sees each message" $F-frontier.jsonl uncompressed,true_topk
    F=results/personachat
    python experiments/frontiers.py --out $F-frontier.png --level $F-lora.jsonl --ceiling 100 \
        --group "the paper's method" $F-frontier.jsonl fetchsgd-paper \
        --group "true top-k" $F-frontier.jsonl,$F-lora.jsonl true_topk \
        --group "the server sees only sums" $F-frontier.jsonl fetchsgd \
        --group "it sees each message" $F-frontier.jsonl uncompressed

A point is the mean over the seeds of one setting, on the wire; a line joins those that no other of
its group beats in both the metric and compression. The level is the mean of the uncompressed runs
of a file; no such run is a point. Adapters (LoRA) are left out: their compression is against
themselves.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import matplotlib.pyplot as plt

from fetchsgd.report.runs import Run, find_runs

COLOURS = ("0.45", "#0072b2", "#009e73", "#d55e00")
PANELS = {"upload": "upload compression", "overall": "overall compression"}
NONE = 1.02  # what a run that is not compressed may seem to be
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


class Point(NamedTuple):
    """A setting: how much it compresses, and what it reaches. A perplexity is negative."""

    compression: float
    value: float


def runs_of(files: str, methods: str) -> list[Run]:
    """Those of some methods, in files with commas between them."""
    found = find_runs([Path(file) for file in files.split(",")])
    return [
        run
        for run in found
        if run.method in methods.split(",") and not run.settings.get("task.lora_rank")
    ]


def compresses(run: Run) -> bool:
    return not run.can_be_drawn("upload", "wire") or _compression(run, "overall") > NONE


def points(runs: list[Run], panel: str, floor: float) -> list[Point]:
    """The mean over seeds of each setting of which no run diverged, or is below the floor."""
    by_setting = defaultdict(list)
    for run in runs:
        setting = {k: v for k, v in run.settings.items() if k != "train.seed"}
        by_setting[repr(sorted(setting.items()))].append(run)
    kept = [
        group
        for group in by_setting.values()
        if all(run.can_be_drawn(panel, "wire") and _value(run) >= floor for run in group)
    ]
    found = [
        Point(fmean(_compression(run, panel) for run in group), fmean(_value(run) for run in group))
        for group in kept
    ]
    return sorted(found)


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
    return run.value if run.higher_is_better else -run.value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--group", nargs=3, action="append", required=True, metavar=("LABEL", "FILE", "METHODS")
    )
    parser.add_argument("--level", required=True, metavar="FILE")
    parser.add_argument(
        "--floor", type=float, default=0.6, help="settings with an accuracy below are left out"
    )
    parser.add_argument(
        "--ceiling", type=float, default=math.inf, help="or with a perplexity above"
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    shape, axes = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained", sharey=True)
    plain = [
        run
        for run in runs_of(options.level, "uncompressed")
        if run.can_be_drawn("upload", "wire") and _compression(run, "upload") < NONE
    ]
    better = plain[0].higher_is_better
    floor = options.floor if better else -options.ceiling

    def shown(found: list[Point]) -> tuple[list[float], list[float]]:
        values = [100 * point.value if better else -point.value for point in found]
        return [point.compression for point in found], values

    for colour, (label, files, methods) in zip(COLOURS, options.group, strict=False):
        chosen = [run for run in runs_of(files, methods) if compresses(run)]
        for panel, ax in zip(PANELS, axes, strict=True):
            found = points(chosen, panel, floor)
            ax.plot(*shown(found), "o", color=colour, alpha=0.35, markersize=4)
            ax.plot(*shown(frontier(found)), "o-", color=colour, label=label, markersize=5)
    (level,) = shown([Point(1.0, fmean(map(_value, plain)))])[1]
    for title, ax in zip(PANELS.values(), axes, strict=True):
        ax.set_xscale("log")
        ticks = [tick for tick in TICKS if tick <= ax.get_xlim()[1]]
        ax.set_xticks(ticks, [f"{tick}×" for tick in ticks], fontsize=8)
        ax.minorticks_off()
        ax.set_xlabel(f"{title}, on the wire")
        ax.grid(alpha=0.3)
        ax.axhline(level, color="0.3", linestyle=":", label="uncompressed")
    if not better:
        axes[0].invert_yaxis()  # the best is above on every figure
    axes[0].set_ylabel("test accuracy, %" if better else plain[0].metric)
    entries = axes[0].get_legend_handles_labels()
    shape.legend(*entries, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    shape.savefig(options.out, dpi=160)


if __name__ == "__main__":
    main()
