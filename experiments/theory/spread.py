"""Signals spread over I rounds, under noise that never fades: where theorem 2's window is needed.

    python experiments/theory/spread.py --out results/theory-spread

writes results/theory-spread.json and results/theory-spread.png, in a few minutes on two cores;
`--redraw` draws what the file has. It trains with FetchSGD's own step, but not as a `Task`: what
clients have changes from round to round.

Weight j is to be target_j, with loss |w_j - target_j|. Clients know about one weight at a time,
for I rounds (a burst), and never hear of it again. A gradient is size * sign(w_j - target_j) on
it, plus noise of length 1 on all. Bursts do not overlap, and I whole steps reach the target. In
the sum of a burst's gradients its weight makes up some 0.65 of the norm, in a single one 0.29. So
they are (I, 0.6)-sliding heavy (Definition 1); the file has the shares that were measured.

Recovery is by threshold, |U| >= tau l2 with tau = 0.4. The theorem's table keeps all estimates of
all rounds and I sketches within tau / 2 of the norm, with probability 0.99 (fetchsgd.theory; l2 is
taken as exact). So a window of I finds every burst, and no noise. For vanilla accumulation noise
grows as the root of t: a burst is sure to be found until `drowning`, and not to be from `drowned`.

    found     something of the burst was sent, in the right direction, before the run ended
    learnt    w_j / target_j at the end, between 0 and 1

A burst is found in pieces, as soon as they are heavy. What is left of its last rounds is not, and
is lost with the window, so "learnt" stays below 1. The small table promises nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import repeat
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

from fetchsgd.methods.fetchsgd import FetchSGD
from fetchsgd.randomness import torch_generator
from fetchsgd.runs.environment import commit, hardware, versions
from fetchsgd.theory import Certainty, Heaviness, TableSize, risk, smallest_table

Form = Literal["overlapping", "histogram"]
SEEDS = 3
TAU, DELTA = 0.4, 0.01
K = {"threshold": 4, "top_k": 1}  # by recovery; never more than one weight has a signal
SMALL = (5, 200)  # rows and columns
EVERY = 4  # rounds between the losses that are kept
COLOURS = {"vanilla": "#d55e00", "overlapping": "#0072b2", "histogram": "#009e73"}


@dataclass(frozen=True)
class Spread:
    """The problem, and how long it lasts."""

    dim: int = 2000
    burst: int = 8  # I
    period: int = 10  # rounds from one burst to the next
    rounds: int = 320
    share: float = 0.65  # of a burst's weight in the norm of the burst's sum

    @property
    def size(self) -> float:
        """Of the signal in one gradient, where noise has length 1."""
        return self.share / math.sqrt((1 - self.share**2) * self.burst)

    @property
    def target(self) -> float:
        return self.burst * self.size

    @property
    def bursts(self) -> int:
        return (self.rounds - self.burst) // self.period + 1

    def buried(self, share: float) -> float:
        """The round from which on a burst has less than that of the norm of all gradients."""
        return self.target**2 * (1 - share**2) / share**2

    def noise(self, generator: torch.Generator) -> Tensor:
        signs = torch.randint(0, 2, (self.dim,), generator=generator).float() * 2 - 1
        return signs / math.sqrt(self.dim)

    def tables(self) -> dict[str, TableSize]:
        certainty = Certainty(self.dim, self.rounds, DELTA, sketches=self.burst)
        error = Heaviness(2, TAU).error
        theorem, small = smallest_table(error, certainty), risk(*SMALL, error, certainty)
        return {"theorem": theorem, "small": small}


@dataclass(frozen=True)
class Setting:
    """One way to train. A window of 0 rounds is vanilla accumulation."""

    table: Literal["theorem", "small"]
    recovery: Literal["threshold", "top_k"] = "threshold"
    window: int = 0
    form: Form = "overlapping"

    def method(self, spread: Spread, seed: int) -> FetchSGD:
        size = spread.tables()[self.table]
        return FetchSGD(
            spread.dim, k=K[self.recovery], cols=size.cols, rows=size.rows, momentum=0.0,
            mask_momentum=False, error_reset="subtract", sketch_seed=seed,
            error="window" if self.window else "vanilla", window=self.window,
            window_form=self.form, recovery=self.recovery,
            tau=TAU if self.recovery == "threshold" else 0.0, hash="fixed",
        )  # fmt: skip


@dataclass
class Watch:
    """What a run shows; lists go over bursts, and losses over rounds."""

    found: Tensor
    learnt: Tensor
    losses: list[float] = field(default_factory=list)  # for each burst so far; 1 if none is learnt
    noise_sent: int = 0  # values on weights that had no burst
    least_heavy: float = 1.0  # a burst's share in the norm of its sum
    most_at_once: float = 0.0  # and in that of a single gradient

    def heaviness(self, gradients: Sequence[Tensor], place: Tensor, ended: bool) -> None:
        """Of the burst at this place, in the gradients that it has been in."""
        last, total = gradients[-1], sum(gradients[1:], gradients[0])
        self.most_at_once = max(self.most_at_once, float(last[place].abs() / last.norm()))
        if ended:
            self.least_heavy = min(self.least_heavy, float(total[place].abs() / total.norm()))


def train(spread: Spread, setting: Setting, seed: int) -> Watch:
    """Noise, places and signs depend on the seed alone."""
    generator = torch_generator(seed, "local")
    places = torch.randperm(spread.dim, generator=generator)[: spread.bursts]
    signs = torch.randint(0, 2, (spread.bursts,), generator=generator).float() * 2 - 1
    method = setting.method(spread, seed)
    state = method.init(torch.device("cpu"))
    weights, targets = torch.zeros(2, spread.dim)
    watch = Watch(places < 0, weights[places])
    gradients: list[Tensor] = []  # of the burst
    for t in range(spread.rounds):
        number, since = divmod(t, spread.period)
        gradient = spread.noise(generator)
        if number < spread.bursts and since < spread.burst:
            place = places[number]
            targets[place] = signs[number] * spread.target
            gradient[place] += spread.size * (weights[place] - targets[place]).sign()
            gradients = [*gradients, gradient] if since else [gradient]
            watch.heaviness(gradients, place, ended=since == spread.burst - 1)
        delivered, state = method.step(method.message.compress(gradient), state, 1.0)
        sent = delivered.sparse.to_dense()
        weights -= sent
        watch.found |= (sent * targets < 0)[places]
        watch.noise_sent += int(((sent != 0) & (targets == 0)).sum())
        watch.losses.append(float((weights - targets).abs().sum() / targets.abs().sum()))
    watch.learnt = (weights[places] * signs / spread.target).clamp(0, 1)
    return watch


def settings_of(spread: Spread) -> list[Setting]:
    """All that is compared. The theorem's table is slow: vanilla and windows of I alone."""
    forms: tuple[Form, ...] = ("overlapping", "histogram")
    lengths = [spread.burst * n // 8 for n in (1, 2, 4, 8, 16)]
    found = [Setting("theorem"), *(Setting("theorem", "threshold", spread.burst, f) for f in forms)]
    found += [Setting("small"), Setting("small", "top_k")]
    found += [Setting("small", "threshold", length, f) for f in forms for length in lengths]
    found += [Setting("small", "top_k", length, f) for f in forms for length in lengths[2:]]
    return found


def measure(spread: Spread, setting: Setting, seeds: Sequence[int]) -> dict[str, Any]:
    """Means over seeds; late bursts are the second half."""
    torch.set_num_threads(1)
    runs = [train(spread, setting, seed) for seed in seeds]
    late = spread.bursts // 2
    found = torch.stack([one.found for one in runs]).double()
    learnt = torch.stack([one.learnt for one in runs]).double()
    losses = torch.tensor([one.losses for one in runs])
    return {
        **asdict(setting),
        "late_found": float(found[:, late:].mean()),
        "late_learnt": float(learnt[:, late:].mean()),
        "late_learnt_by_seed": rounded(learnt[:, late:].mean(dim=1)),
        "last_loss": float(losses[:, -1].mean()),
        "noise_sent": sum(one.noise_sent for one in runs) / len(runs),
        "least_heavy": min(one.least_heavy for one in runs),
        "most_at_once": max(one.most_at_once for one in runs),
        "found": rounded(found.mean(dim=0)),
        "learnt": rounded(learnt.mean(dim=0)),
        "losses": rounded(losses.mean(dim=0)[EVERY - 1 :: EVERY]),
    }


def rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def experiment(spread: Spread, seeds: Sequence[int]) -> dict[str, Any]:
    """All settings, with what they were measured on."""
    began = time.perf_counter()
    with ProcessPoolExecutor() as pool:
        measured = list(pool.map(measure, repeat(spread), settings_of(spread), repeat(seeds)))
    return {
        "problem": {**asdict(spread), "size": spread.size, "bursts": spread.bursts},
        "settings": {"tau": TAU, "delta": DELTA, "k": K, "seeds": list(seeds)},
        "tables": {name: asdict(table) for name, table in spread.tables().items()},
        "drowning": spread.buried(1.5 * TAU),
        "drowned": spread.buried(0.5 * TAU),
        "measured": measured,
        "seconds": time.perf_counter() - began,
        "commit": commit(),
        "hardware": hardware(torch.device("cpu")),
        "versions": versions(),
    }


def line(one: dict[str, Any]) -> dict[str, Any]:
    """Its colour and label."""
    if not one["window"]:
        return {"color": COLOURS["vanilla"], "label": "vanilla"}
    return {"color": COLOURS[one["form"]], "label": f"window {one['window']}, {one['form']}"}


def draw_learnt(axes: Axes, results: dict[str, Any], chosen: Sequence[dict[str, Any]]) -> None:
    """Found and learnt over the round in which a burst ends, in groups of four bursts."""
    problem = results["problem"]
    ends = [n * problem["period"] + problem["burst"] for n in range(problem["bursts"])]
    groups = [slice(n, n + 4) for n in range(0, len(ends), 4)]
    at = [mean(ends[group]) for group in groups]
    for width, one in zip((1, 4, 1.5), chosen, strict=True):  # two of the lines are one
        found, learnt = ([mean(one[key][g]) for g in groups] for key in ("found", "learnt"))
        axes.plot(at, learnt, "o-", markersize=4, **line(one))
        axes.plot(at, found, "--", color=line(one)["color"], linewidth=width)
    for style, name in (("o-", "learnt"), ("--", "found")):
        axes.plot([], [], style, color="0.4", markersize=4, label=name)
    axes.axvspan(results["drowning"], results["drowned"], color="0.9", zorder=0)
    axes.axvline(results["drowned"], color="0.6", label="vanilla finds none after this")
    axes.set(xlabel="round in which a burst ends", ylabel="share of bursts", ylim=(-0.03, 1.05))


def draw_losses(axes: Axes, chosen: Sequence[dict[str, Any]]) -> None:
    for one in chosen:
        axes.plot([EVERY * (n + 1) for n in range(len(one["losses"]))], one["losses"], **line(one))
    axes.axhline(1, color="0.6", linestyle=":", label="nothing learnt")
    axes.set(xlabel="round t", ylabel="loss, by what is to be learnt", ylim=(0, None))


def draw_windows(axes: Axes, chosen: Sequence[dict[str, Any]]) -> None:
    """Late bursts learnt over the window's length."""
    for name in ("overlapping", "histogram"):
        ours = [one for one in chosen if one["window"] and one["form"] == name]
        lengths, shares = ([one[key] for one in ours] for key in ("window", "late_learnt"))
        axes.plot(lengths, shares, "o-", color=COLOURS[name], markersize=4, label=name)
    vanilla = next(one["late_learnt"] for one in chosen if not one["window"])
    axes.axhline(vanilla, color=COLOURS["vanilla"], label="vanilla")
    axes.set(xscale="log", xlabel="window, rounds", ylabel="late bursts learnt", ylim=(-0.03, 1.05))
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.minorticks_off()


def figure(results: dict[str, Any], out: Path) -> None:
    measured, burst = results["measured"], results["problem"]["burst"]
    theorem = [one for one in measured if one["table"] == "theorem"]
    small = [one for one in measured if one not in theorem and one["recovery"] == "threshold"]
    top_k = [one for one in measured if one["recovery"] == "top_k" and one["window"] in (0, burst)]
    shape, panels = plt.subplots(2, 2, figsize=(10, 7.4), layout="constrained")
    draw_learnt(panels[0, 0], results, theorem)
    draw_losses(panels[0, 1], theorem)
    draw_windows(panels[1, 0], small)
    draw_losses(panels[1, 1], top_k)
    titles = *["theorem 2's table, threshold"] * 2, "small table, threshold", "small table, top-k"
    for axes, title in zip(panels.flat, titles, strict=True):
        axes.set_title(f"{title}, I = {burst}", fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, framealpha=0.9, edgecolor="none")
    shape.savefig(out, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="without .json and .png")
    parser.add_argument("--redraw", action="store_true", help="what was measured before")
    options = parser.parse_args()
    numbers = options.out.with_suffix(".json")
    if not options.redraw:
        results = experiment(Spread(), range(SEEDS))
        numbers.write_text(json.dumps(results, indent=1) + "\n")
    figure(json.loads(numbers.read_text()), options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
