"""How noisy a round with a fresh hash is: measured where the true gradient is seen, and predicted.

Of what is decoded each coordinate has its cell times a gain c_i (fetchsgd.methods.decoding). Over
signs, and over gradients of the variances v, its squared error is on average

    c_i^2 (V - v_i + r) + (1 - c_i)^2 v_i

where V is the sum of the variances in the cell, so that V = v_i / share_i, and r is the variance
with which rounding has changed the cell. Without a prior, and with m = dim / cols in each cell, the
sum is c^2 (m - 1) + (1 - c)^2 times the squared norm. A number x that a client rounds to
multiples of a step has the variance step^2 f (1 - f), where f = x / step - floor(x / step); in the
mean it counts by the square of the client's share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.diagnose.spaces import Scalar, energy
from fetchsgd.methods.decoding import Reading
from fetchsgd.methods.messages import Rounded, Vectors, flatten
from fetchsgd.quantisers.steps import StepRows
from fetchsgd.sketch import CountSketch, Table


@dataclass(frozen=True)
class Seen:
    """A round's mean gradient and its table, as far as clients have compressed theirs."""

    gradient: Float32[Tensor, " dim"]
    table: Table  # before rounding
    is_rounded: bool
    variance: Table | None = None  # of rounding, where it is known

    @classmethod
    def of(cls, vectors: Vectors, sent: Tensor, rounded: Rounded | None) -> Seen:
        whole = vectors[0].flatten() if is_single(vectors) else flatten(vectors)
        if rounded is None:
            return cls(whole, sent, is_rounded=False)
        shares = rounded.shares
        table = torch.tensordot(shares, sent, 1)
        return cls(shares @ whole, table, True, rounding_variance(sent, rounded))

    def plus(self, other: Seen) -> Seen:
        variance = None
        if self.variance is not None and other.variance is not None:
            variance = self.variance + other.variance
        gradient, table = self.gradient + other.gradient, self.table + other.table
        return Seen(gradient, table, self.is_rounded, variance)


def rounding_variance(sent: Float32[Tensor, "n rows cols"], rounded: Rounded) -> Table | None:
    """Of each cell of the mean, for quantisers that round to multiples of a step."""
    if not isinstance(rounded.rows, StepRows):
        return None
    steps = rounded.rows.steps
    usable = torch.where((steps > 0) & steps.isfinite(), steps, torch.inf)
    parts = (sent / usable[:, None, None]).remainder_(1)
    weights = torch.where(usable.isfinite(), (rounded.shares * usable).square(), 0)
    found: Table = torch.tensordot(weights, parts.mul_(1 - parts), 1)
    return found


def noise(
    reading: Reading, sketch: CountSketch, mean: Table, seen: Seen | None
) -> Iterator[tuple[str, Scalar]]:
    """What there is to say of a round, by the names of the notebook. Nothing waits for a GPU."""
    if reading.horizon is not None:
        yield "horizon", reading.horizon
    if seen is None:
        # The table is as long as the gradient, but for what collides.
        yield "decoded_length", (energy(reading.estimate) / row_energy(mean)).sqrt()
        return
    total = energy(seen.gradient)
    error = energy(reading.estimate - seen.gradient)
    yield "decoded_length", (energy(reading.estimate) / total).sqrt()
    yield "decoded_along", reading.estimate @ seen.gradient / total
    yield "decoding_error", error / total
    if sketch.rows > 1:  # of medians there is no such formula
        return
    if not seen.is_rounded:
        # A plain number, too, must be where the other notes are.
        yield "decoding_error_predicted", torch.zeros_like(total) + collisions(reading, sketch)
        return
    gains = reading.share / reading.scale
    rounding = energy(gains * sketch.estimate(mean - seen.table))
    yield "rounding_share", rounding / error
    if seen.variance is not None:
        expected = (gains**2 * sketch.spread(seen.variance)).sum() / total
        predicted = collisions(reading, sketch) + expected
        yield "decoding_error_predicted", predicted
        yield "rounding_share_predicted", expected / predicted


def collisions(reading: Reading, sketch: CountSketch) -> Tensor | float:
    """The squared error that the hash brings, over the squared norm, for one row."""
    if reading.variance is None:
        gain = 1 / reading.scale
        return gain**2 * (sketch.dim / sketch.cols - 1) + (1 - gain) ** 2
    gain, share, variance = reading.share / reading.scale, reading.share, reading.variance
    return (variance * (gain**2 / share - 2 * gain + 1)).sum() / variance.sum()


def row_energy(table: Table) -> Scalar:
    return table.square().sum(dim=1).mean()


def is_single(vectors: Vectors) -> bool:
    """One piece, as gradients are on a GPU: that needs no copy."""
    return isinstance(vectors, list) and len(vectors) == 1
