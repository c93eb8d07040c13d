"""The Pareto frontier: the runs that no other run of their method beats.

The paper's figures draw, for each method, only the runs for which no other one both compresses at
least as much and is at least as good.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def frontier(points: Sequence[tuple[float, float]], higher_is_better: bool = True) -> list[int]:
    """Which `(compression, value)` points are on the frontier, by growing compression.

    Equal points do not beat each other: they are on it together or not at all.

    >>> frontier([(1, 0.9), (10, 0.8), (5, 0.7)])
    [0, 1]
    """
    sign = 1 if higher_is_better else -1
    ranked = sorted(
        ((compression, sign * value, index) for index, (compression, value) in enumerate(points)),
        key=lambda point: (-point[0], -point[1], point[2]),
    )
    kept: list[int] = []
    best = (math.inf, -math.inf)  # the point kept last: all after it compress no more
    for compression, quality, index in ranked:
        if quality > best[1] or (compression, quality) == best:
            best = (compression, quality)
            kept.append(index)
    return sorted(kept, key=lambda index: (points[index][0], index))
