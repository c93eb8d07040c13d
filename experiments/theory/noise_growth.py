"""Noise in the error sketch over time: vanilla accumulation beside sliding windows (section 4.2).

    python experiments/theory/noise_growth.py --out results/theory-noise-growth.png

Gradients are noise of length 1, and nothing is ever taken out of the sketches. On the left, the
norm of the error: vanilla accumulation grows as the root of t, windows stop growing. On the right,
with signals, each on a coordinate of its own and spread over the I rounds up to some t: how heavy
the coordinate is at t in the sketch where it is heaviest, and the heaviest one without signal.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

from fetchsgd import CountSketch
from fetchsgd.sketch.windows import Histogram, Overlapping, SlidingWindow, Suffixes

DIM, ROWS, COLS = 20_000, 5, 2_000
WINDOW, EPS, ROUNDS = 32, 0.5, 3_200
HEAVY = 0.4  # of a signal in the sum of the gradients that hold it
SIGNALS = 24
COLOURS = {"vanilla": "#d55e00", "overlapping": "#0072b2", "histogram": "#009e73"}


@dataclass
class Seen:
    """What one form of accumulation showed."""

    norms: list[float] = field(default_factory=list)
    signals: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)


def signal_ends() -> list[int]:
    """Rounds, evenly over the logarithm of t, from the first that a window fits before."""
    step = (ROUNDS / WINDOW) ** (1 / (SIGNALS - 1))
    return [round(WINDOW * step**n) for n in range(SIGNALS)]


def gradient(t: int, ends: list[int], generator: torch.Generator) -> Tensor:
    """That of round t, counted from one. Signal n is on coordinate n."""
    found = torch.randn(DIM, generator=generator) / math.sqrt(DIM)
    total = HEAVY / math.sqrt(1 - HEAVY**2) * math.sqrt(WINDOW)
    for coordinate, end in enumerate(ends):
        if end - WINDOW < t <= end:
            found[coordinate] += total / WINDOW
    return found


def heaviness(sketch: CountSketch, held: Suffixes) -> Tensor:
    """Of each coordinate in the sketch where it is heaviest."""
    tables = [held.tables[slot] for slot, _ in held.oldest_first()]
    shares = [sketch.estimate(table).abs() / sketch.l2(table) for table in tables]
    return torch.stack(shares).amax(dim=0)


def measure(ends: list[int]) -> dict[str, Seen]:
    """With signals that end in these rounds."""
    sketch = CountSketch(DIM, ROWS, COLS)
    forms: dict[str, SlidingWindow] = {
        "overlapping": Overlapping(sketch, WINDOW),
        "histogram": Histogram(sketch, WINDOW, EPS),
    }
    vanilla = Suffixes(sketch.zeros()[None], torch.ones(1, dtype=torch.int64))
    held = {"vanilla": vanilla} | {name: form.init() for name, form in forms.items()}
    seen = {name: Seen() for name in held}
    generator = torch.Generator().manual_seed(0)
    for t in range(1, ROUNDS + 1):
        table = sketch.sketch(gradient(t, ends, generator))
        held["vanilla"] = Suffixes(held["vanilla"].tables + table, vanilla.ages)
        for name, form in forms.items():
            held[name] = form.insert(held[name], table)
        for name, one in held.items():
            oldest, _ = one.oldest_first()[0]
            seen[name].norms.append(sketch.l2(one.tables[oldest]))
            if t in ends:
                shares = heaviness(sketch, one)
                seen[name].signals.append(float(shares[ends.index(t)]))
                seen[name].others.append(float(shares[SIGNALS:].max()))
    return seen


def draw(norms: Axes, shares: Axes) -> None:
    ends = signal_ends()
    alone, seen = measure([]), measure(ends)
    rounds = range(1, ROUNDS + 1)
    norms.plot(rounds, [math.sqrt(t) for t in rounds], "--", color="0.6", label="√t")
    labels = {
        "vanilla": "vanilla",
        "overlapping": f"window I = {WINDOW}, overlapping",
        "histogram": f"window I = {WINDOW}, histogram",
    }
    for name, one in seen.items():
        line = {"color": COLOURS[name], "label": labels[name], "linewidth": 1.0}
        norms.plot(rounds, alone[name].norms, zorder=3 if name == "overlapping" else 2, **line)
        shares.plot(ends, one.signals, "o-", color=COLOURS[name], markersize=3, label=labels[name])
        shares.plot(ends, one.others, ":", color=COLOURS[name])
    shares.plot([], [], ":", color="0.4", label="heaviest without signal")
    shares.axhline(HEAVY, color="0.6", linestyle="--", label="exact sum of the last I")
    norms.set(xscale="log", yscale="log", xlabel="round t", ylabel="norm of the oldest sketch")
    shares.set(xscale="log", xlabel="round t in which the signal ends", ylim=(0, None))
    shares.set_ylabel("share of the norm in the best sketch")
    for axes in (norms, shares):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=7)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    figure, (norms, shares) = plt.subplots(1, 2, figsize=(9.2, 3.6), layout="constrained")
    draw(norms, shares)
    figure.savefig(options.out, dpi=160)


if __name__ == "__main__":
    main()
