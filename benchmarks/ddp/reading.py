"""How a curve of losses is read, and how methods are called."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

WIDTH = 30  # of the mean that a curve is read by
OF_BUCKETS = ("bucket_mb=", "group_mb=")


def steps_to(losses: Sequence[float], target: float) -> int | None:
    """The first step at which the mean of the last losses is at the target."""
    for end in range(WIDTH, len(losses) + 1):
        if fmean(losses[end - WIDTH : end]) <= target:
            return end
    return None


def in_one_process(method: str) -> str:
    """What curves.py calls a method of links.py: there are no buckets there."""
    return ":".join(part for part in method.split(":") if not part.startswith(OF_BUCKETS))
