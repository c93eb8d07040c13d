"""How a curve of losses is read."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

WIDTH = 30  # of the mean that a curve is read by


def steps_to(losses: Sequence[float], target: float) -> int | None:
    """The first step at which the mean of the last losses is at the target."""
    for end in range(WIDTH, len(losses) + 1):
        if fmean(losses[end - WIDTH : end]) <= target:
            return end
    return None
