"""Fresh hashes: noise as predicted, and convergence where nothing is heavy.

    python experiments/theory/fresh.py --out results/theory-fresh

Left: the squared error of what is decoded of one sketch, over that of the gradient, for one row
of fewer and fewer cells; points are means over hashes, lines what docs/theory.md predicts. Flat
gradients have equal variances, skewed ones variances that are log-normal and known.

Right: f(x) = |x|^2 / 2 from a point where all coordinates are equally large, each round's gradient
exact. One hash for the whole run shows the server `cols` sums of coordinates and never anything
else, so 1 - cols / dim of the squared distance stays. With a fresh hash in every round the squared
distance is multiplied by 1 - 2 a + a^2 dim / cols on average, where a is the rate.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from fetchsgd.methods import FetchSGD
from fetchsgd.methods.decoding import Prior, Unbiased
from fetchsgd.runs.environment import commit, hardware, versions
from fetchsgd.sketch import CountSketch

DIM, COLS, ROUNDS, SEEDS = 1024, 128, 150, 3
MEMBERS = (2, 4, 8, 16, 32)  # dim / cols
HASHES = 100
NO_LIMIT = 1e6
SKEW = 2.0  # the standard deviation of the logarithm of a variance
CPU = torch.device("cpu")


def variances(skew: float) -> Tensor:
    return (skew * torch.randn(DIM, generator=torch.Generator().manual_seed(1))).exp()


def measured_noise(members: int, skew: float, decode: Literal["unbiased", "prior"]) -> float:
    """The mean of |x - g|^2 over that of |g|^2, for gradients drawn from the variances."""
    variance = variances(skew)
    state = {"variance": variance}
    decoder = Prior(NO_LIMIT) if decode == "prior" else Unbiased(NO_LIMIT)
    sketch = CountSketch(DIM, 1, DIM // members, block=1, hash="permutation")
    generator = torch.Generator().manual_seed(members)
    error = length = 0.0
    for round in range(HASHES):
        gradient = variance.sqrt() * torch.randn(DIM, generator=generator)
        one = sketch.for_round(round)
        estimate = decoder.read(one, one.sketch(gradient), state).estimate
        error += float((estimate - gradient).square().sum())
        length += float(gradient.square().sum())
    return error / length


def predicted_noise(members: int, skew: float, decode: Literal["unbiased", "prior"]) -> float:
    """Without a prior m - 1; with one, v (1 / s - 1) over v on average, s the mean share."""
    if decode == "unbiased":
        return members - 1.0
    variance = variances(skew).double()
    generator = torch.Generator().manual_seed(0)
    others = variance[torch.randint(DIM, (4096, members - 1), generator=generator)].sum(dim=1)
    shares = (variance[:, None] / (variance[:, None] + others)).mean(dim=1)
    return float((variance * (1 / shares - 1)).sum() / variance.sum())


@dataclass(frozen=True)
class Setting:
    """One way down the quadratic; the rate is that many times cols / dim."""

    label: str
    hash: Literal["fresh", "fixed"]
    times: float
    part: int = 1  # of dim is k

    @property
    def rate(self) -> float:
        return self.times * COLS / DIM

    def method(self, seed: int) -> FetchSGD:
        fresh: dict[str, Any] = {"decode": "unbiased", "noise_limit": NO_LIMIT}
        return FetchSGD(
            DIM, k=DIM // self.part, cols=COLS, momentum=0.0, block=1, sketch_seed=seed,
            hash=self.hash, **(fresh if self.hash == "fresh" else {}),
        )  # fmt: skip

    @property
    def factor(self) -> float | None:
        """By which the squared distance is multiplied in a round, where that is known."""
        if self.hash == "fixed" or self.part > 1:
            return None
        return 1 - 2 * self.rate + self.rate**2 * DIM / COLS


SETTINGS = (
    Setting("one hash for the run, rate c/2d", "fixed", 0.5),
    Setting("fresh, rate c/d", "fresh", 1.0),
    Setting("fresh, rate c/2d, top d/8", "fresh", 0.5, 8),
    Setting("fresh, rate 3c/d", "fresh", 3.0),
)


def descend(setting: Setting, seed: int, rounds: int = ROUNDS) -> list[float]:
    """Squared distances over that at the start, round by round."""
    method = setting.method(seed)
    x = torch.randn(DIM, generator=torch.Generator().manual_seed(seed)).sign()
    state, found = method.init(CPU), [1.0]
    for round in range(rounds):
        table = method.message.compress(x, round)
        sent, state = method.step(table, state, setting.rate, round=round)
        x = x.index_add(0, sent.sparse.indices, sent.sparse.values, alpha=-1)
        found.append(float(x.square().sum()) / DIM)
        if not found[-1] < 1e6:
            break
    return found


def experiment() -> dict[str, Any]:
    began = time.perf_counter()
    noise = [
        {
            "members": members,
            "skew": skew,
            "decode": decode,
            "measured": measured_noise(members, skew, decode),
            "predicted": predicted_noise(members, skew, decode),
        }
        for decode, skew in (("unbiased", 0.0), ("unbiased", SKEW), ("prior", SKEW))
        for members in MEMBERS
    ]
    quadratic = [
        {
            "label": setting.label,
            "factor": setting.factor,
            "distances": [descend(setting, seed) for seed in range(SEEDS)],
        }
        for setting in SETTINGS
    ]
    return {
        "settings": {"dim": DIM, "cols": COLS, "hashes": HASHES, "skew": SKEW},
        "noise": noise,
        "quadratic": quadratic,
        "seconds": time.perf_counter() - began,
        "commit": commit(),
        "hardware": hardware(CPU),
        "versions": versions(),
    }


def mean_distance(runs: Sequence[Sequence[float]], at: int) -> float:
    """The geometric mean over seeds after so many rounds; infinite for one that ended before."""
    if any(at >= len(run) for run in runs):
        return math.inf
    return math.exp(sum(math.log(run[at]) for run in runs) / len(runs))


def figure(results: dict[str, Any], out: Path) -> None:
    shape, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.2), layout="constrained")
    kinds = {
        ("unbiased", 0.0): ("unbiased, flat", "#0072B2", "o"),
        ("unbiased", SKEW): ("unbiased, skewed", "#56B4E9", "s"),
        ("prior", SKEW): ("with a prior, skewed", "#D55E00", "^"),
    }
    for (decode, skew), (label, colour, marker) in kinds.items():
        own = [n for n in results["noise"] if (n["decode"], n["skew"]) == (decode, skew)]
        members = [one["members"] for one in own]
        left.plot(members, [one["predicted"] for one in own], color=colour, linewidth=1)
        left.plot(
            members, [one["measured"] for one in own], marker, color=colour, label=label,
            markersize=11 if skew == 0 else 6, markerfacecolor="none" if skew == 0 else colour,
        )  # fmt: skip
    left.set(xscale="log", yscale="log", xlabel="weights per cell, d/c")
    left.set_xticks(MEMBERS, [str(tick) for tick in MEMBERS])
    left.minorticks_off()
    left.set_ylabel("squared error over squared length")
    left.set_title("Noise: measured (points), predicted (lines)", fontsize=10)
    colours = ("0.35", "#0072B2", "#009E73", "#D55E00")
    for one, colour in zip(results["quadratic"], colours, strict=True):
        for index, run in enumerate(one["distances"]):
            right.plot(run, color=colour, linewidth=1.5, label=None if index else one["label"])
        if one["factor"] is not None:
            predicted = [one["factor"] ** t for t in range(ROUNDS)]
            right.plot(predicted, "k--", linewidth=0.8)
    settings = results["settings"]
    right.axhline(1 - settings["cols"] / settings["dim"], color="k", ls="--", linewidth=0.8)
    right.set(yscale="log", xlabel="rounds", ylim=(1e-7, 100), xlim=(0, ROUNDS))
    right.set_ylabel("squared distance from the minimum")
    right.set_title("No heavy coordinate: 8 weights per cell (dashed: predicted)", fontsize=10)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    shape.savefig(out, dpi=160)
    plt.close(shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="without .json and .png")
    parser.add_argument("--redraw", action="store_true", help="what was measured before")
    options = parser.parse_args()
    numbers = options.out.with_suffix(".json")
    if not options.redraw:
        torch.set_num_threads(1)  # vectors are short
        numbers.write_text(json.dumps(experiment(), indent=1) + "\n")
    figure(json.loads(numbers.read_text()), options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
