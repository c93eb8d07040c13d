"""Sums of the last gradients (Definition 1), without keeping the gradients."""

from __future__ import annotations

from torch import Tensor


class SlidingSums:
    """Sums of the last 1, 2, 4, ..., `window` vectors, at the end of every period.

    Each begins as many rounds before the end as it is long, so that there is one vector for each
    length and not for each round. A period is at least a window.
    """

    def __init__(self, window: int, period: int) -> None:
        assert 1 <= window <= period
        powers = [1 << i for i in range(window.bit_length())]
        self.lengths = sorted({*powers, window})
        self.period = period
        self.sums: dict[int, Tensor] = {}

    def add(self, vector: Tensor, round: int) -> list[Tensor]:
        """Take in the vector of a round, counted from 1; the sums if a period ends with it."""
        left = self.period - (round - 1) % self.period
        for length in self.lengths:
            if left == length:
                self.sums[length] = vector.clone()
            elif left < length and length in self.sums:  # else it began before a run was resumed
                self.sums[length] += vector
        if left > 1:
            return []
        complete, self.sums = list(self.sums.values()), {}
        return complete
