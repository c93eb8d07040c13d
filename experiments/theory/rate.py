"""Theorem 1's rate, on a problem that meets its assumptions: measured norms beside the bounds.

    python experiments/theory/rate.py --out results/theory-rate

writes results/theory-rate.json and results/theory-rate.png, in seven to ten minutes on a core;
`--redraw` draws what the file has. With `--light 0.03` heaviness fails for momentum 0.9.

The problem is not convex. With phi(x) = x^2 / (1 + x^2), it is f(w) = L/2 sum_i b_i^2 phi(w_i/b_i),
b = 1 for a few coordinates that start in the concave part of phi, and small for all others, which
start at their best value 0. A stochastic gradient is grad f(w), plus or minus a jump on one of the
few, plus or minus a little on each of the others. L, G and f(w^0) - f* are then known exactly.

FetchSGD is Algorithm 1 to the letter, with the theorem's step and a table that removes tau / 2 of
the energy (fetchsgd.theory). Beside it runs the exact q^t: the least share of |q^t|^2 that its
heaviest coordinate had in any round is the tau of Assumption 1 that held, both as the proof uses it
(with the errors that sketching leaves) and as the paper states it (without sketching).

The estimates of min over t of E |grad f(w^t)|^2, with E over seeds:

    plug_in      the least mean over seeds; the noise of few seeds makes it too small
    held_out     one half of the seeds chooses t, the other is read there; not too small; drawn
    mean         over all rounds too: the proof bounds it, and it is no less; drawn
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

from fetchsgd.methods.fetchsgd import FetchSGD
from fetchsgd.methods.uncompressed import Uncompressed
from fetchsgd.randomness import torch_generator
from fetchsgd.runs.environment import commit, hardware, versions
from fetchsgd.theory import Certainty, Problem, contracting, smallest_table, theorem_1
from fetchsgd.vector import SparseVector

Method = FetchSGD | Uncompressed
ROUNDS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
SEEDS = 6
TAUS = {0.0: 0.2, 0.9: 0.12}  # by momentum: what q^t is meant to have, and tables are made for
K, DELTA = 2, 0.01
START = 0.7  # phi is concave beyond 1 / sqrt(3)
SHARES = ("least_share", "least_share_unsketched", "least_removed")
STEEPEST = 3 * math.sqrt(3) / 8  # of phi
METHODS = {  # label, colour, size and filling of markers
    "uncompressed": ("uncompressed", "#d55e00", 8, "none"),
    "fetchsgd": ("FetchSGD", "#0072b2", 4, "#0072b2"),
}


@dataclass(frozen=True)
class Wells:
    """f, its stochastic gradients and its constants."""

    dim: int = 1024
    few: int = 8
    width: float = 0.02  # b of all but the few
    jump: float = 2.0
    light: float = 1e-3  # the norm of the noise on all but the few
    smoothness: float = 1.0  # L: phi'' is at most 2

    @cached_property
    def widths(self) -> Tensor:
        found = torch.full((self.dim,), self.width, dtype=torch.float64)
        found[: self.few] = 1.0
        return found

    @property
    def jitter(self) -> float:  # on each of the many
        return self.light / math.sqrt(self.dim - self.few)

    def start(self) -> Tensor:  # w^0
        weights = torch.zeros(self.dim, dtype=torch.float64)
        weights[: self.few] = START
        return weights

    def loss(self, weights: Tensor) -> Tensor:
        squares = (weights / self.widths) ** 2
        return self.smoothness / 2 * (self.widths**2 * squares / (1 + squares)).sum()

    def gradient(self, weights: Tensor) -> Tensor:
        return self.smoothness * weights / (1 + (weights / self.widths) ** 2) ** 2

    def noise(self, generator: torch.Generator) -> Tensor:
        """Of mean zero. On the few it is so strong that no gradient cancels it."""
        signs = torch.randint(0, 2, (self.dim,), generator=generator).double() * 2 - 1
        place = int(torch.randint(0, self.few, (), generator=generator))
        found = self.jitter * signs
        found[: self.few] = 0
        found[place] = self.jump * signs[place]
        return found

    @property
    def constants(self) -> Problem:
        slope = self.smoothness / 2 * STEEPEST
        squared = (self.jump + slope) ** 2 + (self.few - 1) * slope**2
        squared += (self.dim - self.few) * (slope * self.width + self.jitter) ** 2
        return Problem(self.smoothness, math.sqrt(squared), float(self.loss(self.start())))


@dataclass
class Shadow:
    """What the server's tables stand for, in full: u, e, and e had nothing been sketched."""

    momentum: Tensor
    error: Tensor
    unsketched: Tensor
    least_share: float = 1.0  # of |q|^2, in q's heaviest coordinate
    least_share_unsketched: float = 1.0
    least_removed: float = 1.0  # of |q|^2, by what was sent

    def follow(self, gradient: Tensor, update: Tensor, method: FetchSGD, rate: float) -> None:
        """Lines 11 to 14 of Algorithm 1 on vectors, for an update that was found in a sketch."""
        self.momentum = method.momentum * self.momentum + gradient
        wanted = rate * self.momentum + self.error  # q
        self.error = wanted - update
        removed = 1 - float(self.error @ self.error / (wanted @ wanted))
        self.least_removed = min(self.least_removed, removed)
        self.least_share = min(self.least_share, heaviest_share(wanted))
        wanted = rate * self.momentum + self.unsketched
        self.unsketched = wanted.clone()
        self.unsketched[wanted.abs().topk(method.k).indices] = 0
        self.least_share_unsketched = min(self.least_share_unsketched, heaviest_share(wanted))


def heaviest_share(vector: Tensor) -> float:
    return float((vector**2).max() / (vector @ vector))


@dataclass(frozen=True)
class Trained:
    """One run. Far out f is flat too, so small norms show nothing unless the loss fell."""

    norms: Tensor  # |grad f(w^t)|^2 for all t
    longest: float  # stochastic gradient
    last_loss: float
    shadow: Shadow | None


def train(wells: Wells, method: Method, rate: float, rounds: int, seed: int) -> Trained:
    """Stochastic gradients depend on the seed and the number of rounds alone."""
    generator = torch_generator(seed, "local", rounds)
    weights, state = wells.start(), method.init(torch.device("cpu"))
    shadow = Shadow(*(torch.zeros_like(weights),) * 3) if isinstance(method, FetchSGD) else None
    norms, longest = torch.zeros(rounds, dtype=torch.float64), 0.0
    for t in range(rounds):
        exact = wells.gradient(weights)
        norms[t] = exact @ exact
        sampled = (exact + wells.noise(generator)).float()
        longest = max(longest, float(sampled.norm()))
        sent, state = method.step(method.message.compress(sampled), state, rate)
        update = sent.update
        dense = (update.to_dense() if isinstance(update, SparseVector) else update).double()
        if shadow is not None and isinstance(method, FetchSGD):
            shadow.follow(sampled.double(), dense, method, rate)
        weights = weights - dense
    return Trained(norms, longest, float(wells.loss(weights)), shadow)


def least_norms(norms: Tensor) -> dict[str, float]:
    """The estimates above, from (seeds, rounds)."""
    found = {"plug_in": float(norms.mean(dim=0).min()), "mean": float(norms.mean())}
    if len(norms) > 1:
        one, other = norms[::2].mean(dim=0), norms[1::2].mean(dim=0)
        found["held_out"] = float(one[other.argmin()] + other[one.argmin()]) / 2
    return found


def measure(
    wells: Wells, momentum: float, tau: float, rounds: int, seeds: Sequence[int]
) -> dict[str, Any]:
    """All that is reported for one number of rounds and one momentum."""
    bound = theorem_1(wells.constants, tau, rounds, momentum)
    table = smallest_table(contracting(tau, K).error, Certainty(wells.dim, rounds, DELTA))
    fetchsgd = FetchSGD(
        wells.dim, k=K, cols=table.cols, rows=table.rows, momentum=momentum,
        error_reset="subtract", mask_momentum=False, hash="fixed",
    )  # fmt: skip
    plain = Uncompressed(wells.dim, momentum)
    methods: dict[str, Method] = {"fetchsgd": fetchsgd, "uncompressed": plain}
    runs = {
        name: [train(wells, method, bound.step, rounds, seed) for seed in seeds]
        for name, method in methods.items()
    }
    least = {name: min(getattr(run.shadow, name) for run in runs["fetchsgd"]) for name in SHARES}
    return {
        "rounds": rounds,
        "momentum": momentum,
        "tau": tau,
        "table": {"rows": table.rows, "cols": table.cols, "failure": table.failure},
        **asdict(bound),
        **{name: least_norms(torch.stack([one.norms for one in runs[name]])) for name in runs},
        "last_loss": {name: sum(one.last_loss for one in runs[name]) / len(seeds) for name in runs},
        **least,
        "heavy_in_every_round": min(least["least_share"], least["least_share_unsketched"]) >= tau,
        "longest_gradient": max(one.longest for each in runs.values() for one in each),
    }


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line nearest to the points, on axes that are both logarithmic."""
    logs = torch.tensor(points, dtype=torch.float64).log()
    rounds, values = (logs - logs.mean(dim=0)).T
    return float(rounds @ values / (rounds @ rounds))


def slopes(measured: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of all that is drawn for one momentum."""
    lines = {
        f"{method} {name}": [(one["rounds"], one[method][name]) for one in measured]
        for method in METHODS
        for name in measured[0][method]
    }
    lines |= {name: [(m["rounds"], m[name]) for m in measured] for name in ("printed", "derived")}
    return {name: slope(points) for name, points in lines.items()}


def experiment(wells: Wells, every_rounds: Sequence[int], seeds: Sequence[int]) -> dict[str, Any]:
    """All momenta and numbers of rounds, with what they were measured on."""
    began = time.perf_counter()
    measured = []
    for momentum, tau in TAUS.items():
        for rounds in every_rounds:
            measured.append(measure(wells, momentum, tau, rounds, seeds))
            print(f"momentum {momentum:g}, {rounds} rounds: done", flush=True)
    start = float(wells.gradient(wells.start()).square().sum())
    return {
        "problem": {**asdict(wells), **asdict(wells.constants), "start_norm": start},
        "settings": {"k": K, "delta": DELTA, "seeds": list(seeds), "sketch_seed": 0},
        "slopes": {m: slopes([one for one in measured if one["momentum"] == m]) for m in TAUS},
        "measured": measured,
        "seconds": time.perf_counter() - began,
        "commit": commit(),
        "hardware": hardware(torch.device("cpu")),
        "versions": versions(),
    }


def draw(axes: Axes, measured: Sequence[dict[str, Any]], found: dict[str, float]) -> None:
    rounds = [one["rounds"] for one in measured]
    for name, style in (("printed", "--"), ("derived", "-")):
        label = f"bound, {name} ({found[name]:.2f})"
        axes.plot(rounds, [one[name] for one in measured], style, color="0.35", label=label)
    for name, marker, what in (("mean", "s", "mean over t"), ("held_out", "o", "least over t")):
        for method, (label, colour, size, face) in METHODS.items():
            axes.plot(
                rounds, [one[method][name] for one in measured], marker + ":", markersize=size,
                color=colour, markerfacecolor=face, linewidth=0.8,
                label=f"{label}, {what} ({found[f'{method} {name}']:.2f})",
            )  # fmt: skip
    held = min(min(one["least_share"], one["least_share_unsketched"]) for one in measured)
    momentum, tau = measured[0]["momentum"], measured[0]["tau"]
    axes.set_title(f"momentum {momentum:g}, bounds for τ = {tau:g}, held: {held:.3f}", fontsize=10)
    axes.set(xscale="log", yscale="log", xlabel="rounds T (slopes in brackets)")
    axes.set_xticks(rounds, [str(tick) for tick in rounds])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def figure(results: dict[str, Any], out: Path) -> None:
    shape, panels = plt.subplots(1, 2, figsize=(9.6, 5.6), sharey=True, layout="constrained")
    for axes, (momentum, found) in zip(panels, results["slopes"].items(), strict=True):
        measured = [one for one in results["measured"] if one["momentum"] == float(momentum)]
        draw(axes, measured, found)
        axes.axhline(results["problem"]["start_norm"], color="0.7", zorder=0, label="at the start")
        axes.legend(loc="lower left", fontsize=8, framealpha=1, edgecolor="none")
    panels[0].set_ylabel("squared norm of the gradient of f")
    panels[0].set_ylim(bottom=panels[0].get_ylim()[0] / 60)  # room for the legends
    shape.savefig(out, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="without .json and .png")
    parser.add_argument("--most-rounds", type=int, default=ROUNDS[-1])
    parser.add_argument("--light", type=float, default=Wells.light, help="noise on all but the few")
    parser.add_argument("--redraw", action="store_true", help="what was measured before")
    options = parser.parse_args()
    numbers = options.out.with_suffix(".json")
    if not options.redraw:
        torch.set_num_threads(1)  # vectors are short
        every_rounds = [rounds for rounds in ROUNDS if rounds <= options.most_rounds]
        results = experiment(Wells(light=options.light), every_rounds, range(SEEDS))
        numbers.write_text(json.dumps(results, indent=1) + "\n")
    figure(json.loads(numbers.read_text()), options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
