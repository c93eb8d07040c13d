"""From a round's sketch to an estimate of the mean gradient, where every round has a fresh hash.

A sketch adds m = dim / cols coordinates up in each cell, with random signs. What coordinate i finds
in its cell, y_i, is g_i plus the others: noise with mean zero, whose variance is their energy.

`Unbiased` takes y_i as it is. Its error is m - 1 times as large as the gradient, in squares.

`Prior` knows more: which coordinates tend to be large. With a variance v_i for each, learned along
the run, the best guess at g_i is its share of the cell,

    w_i y_i    with    w_i = v_i / (sum of v over the cell)

which is too small by a factor that differs from coordinate to coordinate: the mean share over
hashes, s_i. Dividing by s_i gives the estimate of least variance among all that are unbiased. In
between lies a family: the least bias that a given amount of noise allows is

    w_i y_i / (s_i + (1 - s_i) / n)

(minimise the sum of v_i (1 - a_i)^2 + a_i^2 variance_i / n over the gains a_i). n = 1 is the best
guess for this round alone; a large n is unbiased, which pays where n rounds are averaged. How much
noise a run bears is a matter of length: updates much longer than the gradient make it diverge. So
n is as large as keeps the estimate within `limit` times the gradient's length, which the server
reads off the sketch. It is chosen anew in each round; there is nothing else to tune.

The variances are learned by expectation-maximisation: v moves towards what is expected of g_i^2
after the round, (w_i y_i)^2 + v_i (1 - w_i).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.methods.base import State
from fetchsgd.sketch import CountSketch, Table

Vector = Float32[Tensor, " dim"]

RATE = 0.02  # by which variances move in a round
BINS, SPAN = 96, 40.0  # of the logarithm of a variance, below the largest
SAMPLE = 4096  # coordinates whose cells mean shares are taken from
LADDER = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125)  # steps of the logarithm of n
LEAST = 1e-38


class Reading(NamedTuple):
    """What a decoder makes of a table: each coordinate's whole cell, times a gain of its own.

    learned: what is the decoder's own in the server's state, afterwards.
    scale, share: the gain is share / scale, where share is of the cell, 1 without a prior. With
        several rows it is of the median of the cells.
    horizon: the logarithm of n, and `variance` that of each coordinate before the round, with a
        prior.
    """

    estimate: Vector
    learned: State
    scale: Tensor | float
    share: Tensor | float = 1.0
    horizon: Float32[Tensor, ""] | None = None
    variance: Vector | None = None


class Decoder(Protocol):
    """How a server reads the mean of a round's sketches."""

    def init(self, dim: int, device: torch.device, dtype: torch.dtype = torch.float32) -> State:
        """What it learns along the run, before the first round."""
        ...

    def read(self, sketch: CountSketch, table: Table, state: State) -> Reading:
        """What is in the table; `sketch` has the hash of the round, and `state` is the server's."""
        ...


@dataclass(frozen=True)
class Unbiased:
    """Every coordinate gets its whole cell, shortened to `limit` times the gradient's length.

    Without collisions a table is as long as its vector; the estimate is sqrt(dim / cols) times as
    long, whatever the gradient.
    """

    limit: float

    def init(
        self,
        dim: int,  # noqa: ARG002
        device: torch.device,  # noqa: ARG002
        dtype: torch.dtype = torch.float32,  # noqa: ARG002
    ) -> State:
        return {}

    def read(self, sketch: CountSketch, table: Table, state: State) -> Reading:  # noqa: ARG002
        estimate = sketch.estimate(table)
        scale: Tensor | float
        if sketch.rows == 1:
            scale = max(1.0, math.sqrt(sketch.dim / sketch.cols) / self.limit)
        else:
            length = estimate.norm() / table.square().sum(1).mean().sqrt().clamp(min=LEAST)
            scale = (length / self.limit).clamp(min=1.0)
        return Reading(estimate / scale, {}, scale)


@dataclass(frozen=True)
class Prior:
    """Every coordinate gets its share of the cell, by variances that are learned."""

    limit: float

    def init(self, dim: int, device: torch.device, dtype: torch.dtype = torch.float32) -> State:
        return {"variance": torch.zeros(dim, dtype=dtype, device=device)}

    def read(self, sketch: CountSketch, table: Table, state: State) -> Reading:
        energy = table.square().sum()
        variance = state["variance"]
        # Before the first round all are equal.
        is_first = variance[:1] == 0
        variance = torch.where(is_first, energy / sketch.dim, variance).clamp(min=LEAST)
        cell = sketch.spread(sketch.fold(variance))
        share = variance / cell
        guess = sketch.estimate(table).mul_(share)
        shares = MeanShares.of(variance, cell)
        learned = (1 - share).mul_(variance).add_(guess.square())
        scale, horizon = shares.widened(guess, self.limit**2 * energy)
        state = {"variance": torch.lerp(variance, learned, RATE, out=learned)}
        return Reading(guess.div_(scale), state, scale, share, horizon, variance)


@dataclass(frozen=True)
class MeanShares:
    """The mean share of a coordinate over hashes, as a function of its variance."""

    places: Float32[Tensor, " dim"]  # of the coordinates among the bins
    shares: Float32[Tensor, " bins"]

    @classmethod
    def of(cls, variance: Vector, cell: Vector) -> MeanShares:
        """By what the others of its cell make up, for a sample of coordinates."""
        top = variance.amax().log()
        every = max(len(cell) // SAMPLE, 1)
        return cls(places_of(variance, top), mean_shares(top, variance[::every], cell[::every]))

    def widened(
        self, guess: Vector, most: Float32[Tensor, ""]
    ) -> tuple[Vector, Float32[Tensor, ""]]:
        """What to divide guesses by, for the least bias that keeps their squares' sum below `most`.

        And the logarithm of n.
        """
        shares = shares_at(self.places, self.shares)
        rest = 1 - shares
        # The sum grows with n: bisect for its logarithm, without asking the device.
        horizon = most.new_zeros(())
        for step in LADDER:
            wider = horizon + step
            scale = rest.mul((-wider).exp()).add_(shares)
            length = torch.div(guess, scale, out=scale).square_().sum()
            horizon = torch.where(length <= most, wider, horizon)
        return rest.mul_((-horizon).exp()).add_(shares), horizon


def places_of(variance: Vector, top: Float32[Tensor, ""]) -> Vector:
    """Where variances are among the bins; `top` is the logarithm of the largest."""
    places = variance.log().sub_(top).add_(SPAN).mul_((BINS - 1) / SPAN).clamp_(0, BINS - 1)
    # A run that has diverged is NaN: it must show in the loss, not fail here as an index.
    return places.nan_to_num_(0.0)


def mean_shares(
    top: Float32[Tensor, ""], variance: Float32[Tensor, " n"], cell: Float32[Tensor, " n"]
) -> Float32[Tensor, " bins"]:
    """The mean share of a coordinate in each bin, by the cells of a sample of coordinates."""
    levels = torch.linspace(-SPAN, 0, BINS, device=variance.device) + top
    others = (cell - variance).clamp_(min=0)
    one = levels.exp()[:, None]
    whole = one + others
    return torch.div(one, whole, out=whole).mean(dim=1)


def shares_at(places: Vector, shares: Float32[Tensor, " bins"]) -> Vector:
    """Mean shares between bins."""
    low = places.long()
    upper, part = (low + 1).clamp_(max=BINS - 1), places - low
    # index_select is four times as fast on a CPU as shares[low], and on a GPU the same.
    return torch.lerp(shares.index_select(0, low), shares.index_select(0, upper), part)
