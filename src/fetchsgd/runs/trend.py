"""Whether a run still gets anywhere: where its loss began, and since when it rises."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

# A loss this many times above its start does not come back.
HOPELESS = 1000.0
# And it is rising where it is this many times above the lowest so far.
RISING = 3.0
CALM = 5  # looks


@dataclass(frozen=True)
class Trend:
    """Where the loss began, how low it came, and since which round it rises.

    calm: how many looks in a row it has been low again. A single round says little, since a cohort
        may hold a single class.
    """

    first: float | None = None
    lowest: float = math.inf
    rising_since: int | None = None
    calm: int = 0

    def after(self, round: int, loss: float) -> Trend:
        first = loss if self.first is None else self.first
        lowest = min(self.lowest, loss) if math.isfinite(loss) else self.lowest
        if not loss <= RISING * (1 + min(self.lowest, abs(first))):
            return Trend(first, lowest, self.rising_since or round)
        if self.rising_since is None or self.calm + 1 >= CALM:
            return Trend(first, lowest)
        return Trend(first, lowest, self.rising_since, self.calm + 1)

    def allows(self, loss: float) -> bool:
        """Whether a run with such a loss may still recover."""
        first = self.first if self.first is not None else loss
        return math.isfinite(loss) and loss <= HOPELESS * (1 + first)

    def tensor(self) -> Float64[Tensor, " 4"]:
        first = math.nan if self.first is None else self.first
        parts = [first, self.lowest, float(self.rising_since or 0), float(self.calm)]
        return torch.tensor(parts, dtype=torch.float64)

    @classmethod
    def restored(cls, tensor: Tensor) -> Trend:
        first, lowest, since, calm = tensor.tolist()
        return cls(None if math.isnan(first) else first, lowest, int(since) or None, int(calm))
