"""What a fresh hash's sketch says of the gradient, piece by piece: decoding.py without its vectors.

Results agree with decoding.py up to rounding for models of up to SAMPLED weights. Beyond, `Prior`
takes the length of what it reads from so many of them at even distances, which is all that its
choice of a horizon needs: a few percent more or less are a fraction of a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.methods.base import State
from fetchsgd.methods.decoding import (
    LADDER,
    LEAST,
    RATE,
    SAMPLE,
    Decoder,
    Prior,
    Unbiased,
    mean_shares,
    places_of,
    shares_at,
)
from fetchsgd.methods.in_pieces import Read, pieces, put_rounded
from fetchsgd.sketch import CountSketch, Table

# Coordinates that the length of an estimate is taken from.
SAMPLED = 1 << 22


def read_in_pieces(
    decoder: Decoder, sketch: CountSketch, table: Table, state: State, round: int
) -> Read:
    """The gradient by pieces, for one walk over all of them in order.

    What the decoder has learned is overwritten as the walk goes on.
    """
    if isinstance(decoder, Unbiased):
        return _unbiased(sketch, table, decoder.limit)
    assert isinstance(decoder, Prior)
    cells = PriorCells.of(sketch, table, state["variance"])
    draw = torch.Generator(table.device).manual_seed(round)
    return cells.reader(cells.horizon(decoder.limit), draw)


def _unbiased(sketch: CountSketch, table: Table, limit: float) -> Read:
    if sketch.rows == 1:
        scale = max(1.0, math.sqrt(sketch.dim / sketch.cols) / limit)
    else:
        squares = [
            sketch.estimate_part(table, first, count).square().sum().double()
            for first, count in pieces(sketch.dim, table.device)
        ]
        own = float(table.square().sum(1).mean().sqrt().clamp(min=LEAST))
        scale = max(1.0, math.sqrt(float(torch.stack(squares).sum())) / own / limit)
    return lambda first, count: sketch.estimate_part(table, first, count).div_(scale)


@dataclass(frozen=True)
class PriorCells:
    """A sketch, and what its cells hold by the variances before the round."""

    sketch: CountSketch
    table: Table
    variance: Tensor  # overwritten by `reader`
    folded: Table  # the variances of each cell, summed
    top: Float32[Tensor, ""]
    shares: Float32[Tensor, " bins"]

    @classmethod
    def of(cls, sketch: CountSketch, table: Table, variance: Tensor) -> PriorCells:
        if not bool(variance[0]):  # before the first round all are equal
            variance.fill_(table.square().sum() / sketch.dim)
        variance.clamp_(min=LEAST)
        folded = sketch.fold(variance)
        top = variance.amax().float().log()
        every = max(sketch.dim // SAMPLE, 1)
        sample = torch.arange(0, sketch.dim, every, device=table.device)
        cell = sketch.spread_at(folded, sample)
        shares = mean_shares(top, variance[::every].float(), cell)
        return cls(sketch, table, variance, folded, top, shares)

    def horizon(self, limit: float) -> float:
        """The logarithm of n: as in `MeanShares.widened`, from a sample of coordinates."""
        every = -(-self.sketch.dim // SAMPLED) | 1  # odd: layers repeat themselves in even steps
        sample = torch.arange(0, self.sketch.dim, every, device=self.table.device)
        variance = self.variance[::every].float()
        share = variance / self.sketch.spread_at(self.folded, sample)
        guess = self.sketch.query(self.table, sample).mul_(share)
        shares = shares_at(places_of(variance, self.top), self.shares)
        most = limit**2 * float(self.table.square().sum()) * len(sample) / self.sketch.dim
        found = 0.0
        for step in LADDER:
            scale = _scale(shares, found + step)
            found += step if float((guess / scale).square_().sum()) <= most else 0.0
        return found

    def _guess(self, first: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Variances, shares of cells, and the best guess for this round alone."""
        variance = self.variance[first : first + count].float()
        share = variance / self.sketch.spread_part(self.folded, first, count)
        return variance, share, self.sketch.estimate_part(self.table, first, count).mul_(share)

    def reader(self, horizon: float, draw: torch.Generator) -> Read:
        """Reads each piece once, and moves its variances."""

        def read(first: int, count: int) -> Tensor:
            variance, share, guess = self._guess(first, count)
            learned = guess.square().add_(variance * (1 - share))
            shares = shares_at(places_of(variance, self.top), self.shares)
            moved = torch.lerp(variance, learned, RATE)
            put_rounded(self.variance[first : first + count], moved, draw)
            return guess.div_(_scale(shares, horizon))

        return read


def _scale(shares: Tensor, horizon: float) -> Tensor:
    return (1 - shares).mul_(math.exp(-horizon)).add_(shares)
