"""The smallest step at which a message fits into some bytes, for many messages at once.

Steps have 8 significant bits, so they are few, and are counted in notches, of which 128 make a
factor of 2. Sizes fall as steps grow, close to a power of the step over a small range, so each try
goes where the line through the last two (as logarithms) meets the limit, but stays between the
largest step that was too small and the smallest that fitted. Nothing waits for a device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

OCTAVE = 128
MOST_NOTCH = 0x7F7F  # of the largest bfloat16
# How fast the logarithm of a size may fall with that of the step.
SLOPES = (-4.0, -0.02)
# Aimed at, of the limit, so that the next try is more likely to fit than not.
AIM = 0.998


def notches(steps: Float32[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Positive steps of 8 significant bits as whole numbers in the same order."""
    return steps.view(torch.int32).long() >> 16


def from_notches(at: Int64[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return (at << 16).int().view(torch.float32)


@dataclass(frozen=True, eq=False)
class Search:
    """at: to be tried; low: too small, or just below the first; high: fits, or the last resort."""

    low: Int64[Tensor, " n"]
    high: Int64[Tensor, " n"]
    at: Int64[Tensor, " n"]
    limit: float
    bits: Float64[Tensor, " n"] | None = None  # logarithm of the last size
    before: Int64[Tensor, " n"] | None = None  # where that was
    count: int = 1

    @classmethod
    def start(
        cls, first: Int64[Tensor, " n"], last: Int64[Tensor, " n"], limit: float, count: int
    ) -> Search:
        return cls(first - 1, torch.maximum(first, last), first, limit, count=count)

    def narrowed(self, sizes: Float64[Tensor, " n"]) -> Search:
        """After a try at `at` that gave these sizes."""
        fits = sizes <= self.limit
        low = torch.where(fits, self.low, torch.maximum(self.low, self.at))
        high = torch.where(fits, torch.minimum(self.high, self.at), self.high)
        bits = torch.log2(sizes)
        missing = bits - math.log2(AIM * self.limit)
        move = -OCTAVE * missing / self._slope(bits, sizes)
        at = self.at + torch.ceil(move).clamp(-1e6, 1e6).long()
        at = torch.minimum(torch.maximum(at, low + 1), high)
        return replace(self, low=low, high=high, at=at, bits=bits, before=self.at)

    def _slope(
        self, bits: Float64[Tensor, " n"], sizes: Float64[Tensor, " n"]
    ) -> Float64[Tensor, " n"]:
        """Of log size over log step, from the last two tries."""
        if self.bits is None or self.before is None:
            # Where numbers take several bits each, a doubled step saves one of them.
            return -1 / (8 * sizes / self.count).clamp(min=1)
        moved = (self.at - self.before).double() / OCTAVE
        slope = (bits - self.bits) / torch.where(moved == 0, 1.0, moved)
        return torch.where(moved == 0, -1.0, slope).clamp(*SLOPES)
