"""The smallest step at which a message fits into some bytes, for many messages at once.

Steps have 8 significant bits, so they are few, and are counted in notches, of which 128 make a
factor of 2. Sizes fall as steps grow, close to a power of the step. So each try goes where the line
between the largest step that was too small and the smallest that fitted, as logarithms, meets the
limit; as long as one of both is missing, it goes from the last try along a slope that is usual for
such a size. An end that stays twice counts half (Dowell and Jarratt's rule of Illinois), since the
line is bent. Nothing waits for a device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

OCTAVE = 128
MOST_NOTCH = 0x7F7F  # of the largest bfloat16
# The least and most that the logarithm of a size falls with that of the step, in notches.
SLOPES = (-2.0 / OCTAVE, -0.02 / OCTAVE)
# What a try aims at, of the limit: a little below it between two ends, so that it rather fits than
# not; clearly below it to find a step that fits at all, a little above to find one that does not.
AIM, AIM_BELOW, AIM_ABOVE = 0.998, 0.95, 1.01
# Of the limit: a step that fits and uses that much is taken.
GOOD = 0.985


def notches(steps: Float32[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Positive steps of 8 significant bits as whole numbers in the same order."""
    return steps.view(torch.int32).long() >> 16


def from_notches(at: Int64[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return (at << 16).int().view(torch.float32)


@dataclass(frozen=True, eq=False)
class Search:
    """at: to be tried; low: too small, or just below the first; high: fits, or the last resort.

    Beside low and high stand the logarithms of their sizes over what is aimed at, NaN where they
    have not been tried.
    """

    low: Int64[Tensor, " n"]
    high: Int64[Tensor, " n"]
    at: Int64[Tensor, " n"]
    low_off: Float64[Tensor, " n"]
    high_off: Float64[Tensor, " n"]
    limit: float
    best: Float64[Tensor, " n"]  # the size at high, 0 before it was tried
    fitted: Bool[Tensor, " n"] | None = None  # whether the last try did
    done: Bool[Tensor, " n"] | None = None

    @classmethod
    def start(cls, first: Int64[Tensor, " n"], last: Int64[Tensor, " n"], limit: float) -> Search:
        unknown = torch.full_like(first, math.nan, dtype=torch.float64)
        return cls(
            first - 1,
            torch.maximum(first, last),
            first,
            unknown,
            unknown,
            limit,
            torch.zeros_like(unknown),
        )

    def at_once(self, at: Int64[Tensor, " n"]) -> Search:
        """To be tried there next."""
        return replace(self, at=torch.minimum(torch.maximum(at, self.low + 1), self.high))

    def narrowed(self, sizes: Float64[Tensor, " n"], count: int) -> Search:
        """After a try at `at` that gave these sizes for messages of `count` numbers."""
        off, fits = torch.log2(sizes / (AIM * self.limit)), sizes <= self.limit
        stale = torch.zeros_like(fits) if self.fitted is None else fits == self.fitted
        kept = torch.where(stale, 0.5, 1.0)
        found = replace(
            self,
            fitted=fits,
            best=torch.where(fits, sizes, self.best),
            low=torch.where(fits, self.low, self.at),
            high=torch.where(fits, self.at, self.high),
            low_off=torch.where(fits, self.low_off * kept, off),
            high_off=torch.where(fits, off, self.high_off * kept),
        )
        between = (found.high_off - found.low_off) / (found.high - found.low).clamp(min=1)
        inside = found.low - found.low_off / between.clamp(max=SLOPES[1])
        # Where numbers take several bits each, a doubled step saves one of them.
        slope = (-1 / (OCTAVE * (8 * sizes / count).clamp(min=1))).clamp(*SLOPES)
        aim = torch.where(fits, math.log2(AIM_ABOVE), math.log2(AIM_BELOW))
        outside = self.at + (aim - off) / slope
        next = torch.where(between.isnan(), outside, inside).clamp(-1e6, 1e6)
        done = (found.best >= GOOD * self.limit) | (found.best > 0) & (found.high - found.low <= 1)
        at = torch.where(done, found.high, torch.ceil(next).long())
        return replace(found.at_once(at), done=done)

    @property
    def settled(self) -> bool:
        """Whether no try would change anything; this waits for a device."""
        return self.done is not None and bool(self.done.all())
