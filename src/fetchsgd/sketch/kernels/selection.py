"""Top-k over estimates that are never all in memory at once.

Both fast kernels can `collect`: walk over all coordinates in order and keep those whose estimate
reaches a threshold. Top-k is then a good guess of the threshold, one walk, and an exact choice
among the few candidates. The guess comes from a fixed sample of coordinates; if it turns out
wrong, bisection over the bits of the threshold finds the exact one in at most 31 walks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

INFINITY_BITS = 0x7F800000


@dataclass(frozen=True)
class Collected:
    """What a walk kept, in order of index, and how many estimates it saw."""

    indices: Int64[Tensor, " kept"]
    values: Float32[Tensor, " kept"]
    above: int  # |estimate| > threshold
    equal: int  # |estimate| == threshold


@runtime_checkable
class Collector(Protocol):
    """A kernel that can walk over all estimates."""

    samples: int  # how many estimates to look at for a first guess of a threshold

    def query(
        self, table: Float32[Tensor, "rows cols"], indices: Int64[Tensor, " n"]
    ) -> Float32[Tensor, " n"]:
        """Estimates of the given coordinates alone."""
        ...

    def candidates(
        self, table: Float32[Tensor, "rows cols"], threshold: Float32[Tensor, " 1"], capacity: int
    ) -> tuple[Int64[Tensor, " found"], Float32[Tensor, " found"]] | None:
        """All coordinates that reach the threshold, in any order; None if above `capacity`."""
        ...

    def collect(
        self, table: Float32[Tensor, "rows cols"], threshold: float, size: int
    ) -> Collected:
        """At most `size` coordinates: all above the threshold, then ties by lowest index.

        When more than `size` are above, the first `size` of those and no ties.
        """
        ...


def top_k(
    kernels: Collector, table: Float32[Tensor, "rows cols"], dim: int, k: int
) -> tuple[Int64[Tensor, " k"], Float32[Tensor, " k"]]:
    """The k largest |estimates| in order of index; among equals the lowest index wins."""
    guess, capacity = _guess_threshold(kernels, table, dim, k)
    found = kernels.candidates(table, guess, capacity)
    if found is None or len(found[0]) < k:
        exact = kernels.collect(table, _exact_threshold(kernels, table, k, float(guess)), k)
        return exact.indices, exact.values
    return _keep_largest(*found, dim, k)


def at_least(
    kernels: Collector, table: Float32[Tensor, "rows cols"], threshold: float
) -> tuple[Int64[Tensor, " found"], Float32[Tensor, " found"]]:
    """All coordinates with |estimate| >= threshold, in order of index."""
    if threshold == 0.0:
        counted = kernels.collect(table, 0.0, 0)
        found = kernels.collect(table, 0.0, counted.above + counted.equal)
    else:
        below = next_below(threshold)
        found = kernels.collect(table, below, kernels.collect(table, below, 0).above)
    return found.indices, found.values


def next_below(threshold: float) -> float:
    """The largest float32 below a positive one."""
    return float(np.nextafter(np.float32(threshold), np.float32(0)))


def _keep_largest(
    indices: Int64[Tensor, " n"], values: Float32[Tensor, " n"], dim: int, k: int
) -> tuple[Int64[Tensor, " k"], Float32[Tensor, " k"]]:
    """The k of n candidates with the largest |value|, in order of index."""
    magnitudes = values.abs()
    if dim < 1 << 32:
        # One key says both: larger magnitudes first, then lower indices.
        keys = (INFINITY_BITS - magnitudes.view(torch.int32)).long() << 32 | indices
        if k > 0 and not keys.is_cuda:  # where a selection is faster than a sort
            last = np.partition(keys.numpy(), k - 1)[k - 1]
            order = (keys <= int(last)).nonzero()[:, 0]
        else:
            order = keys.argsort()
    else:
        by_index = indices.argsort()
        order = by_index[magnitudes[by_index].argsort(descending=True, stable=True)]
    chosen = order[:k]
    kept = indices[chosen]
    if dim < 1 << 31:  # on a GPU, a sort takes launches for every byte
        kept = kept.int()
    kept, back = kept.sort()
    return kept.long(), values[chosen][back]


def _guess_threshold(
    kernels: Collector, table: Float32[Tensor, "rows cols"], dim: int, k: int
) -> tuple[Float32[Tensor, " 1"], int]:
    """A magnitude that most likely more than k estimates reach, and a bound on how many."""
    count = min(kernels.samples, max(dim // 32, 1))
    expected = k * count / dim
    # Four standard deviations above what k estimates would put into the sample.
    rank = math.ceil(expected + 4 * math.sqrt(expected) + 16)
    capacity = min(dim, 2 * rank * dim // count + 1)
    if rank >= count:
        return torch.zeros(1, device=table.device), capacity
    sampled = kernels.query(table, _picks(count, dim, table.device)).abs()
    if sampled.is_cuda:  # where a sort is faster than a selection
        return sampled.sort(descending=True).values[rank - 1 : rank], capacity
    return sampled.topk(rank).values[-1:], capacity


@lru_cache(maxsize=8)
def _picks(count: int, dim: int, device: torch.device) -> Int64[Tensor, " count"]:
    """Coordinates at even distances."""
    return torch.arange(count, device=device) * dim // count


def _exact_threshold(
    kernels: Collector, table: Float32[Tensor, "rows cols"], k: int, guess: float
) -> float:
    """The k-th largest |estimate|. Non-negative floats sort as their bits do, so bisect those."""
    low, high = -1, INFINITY_BITS  # at least k estimates are above `low`; fewer reach `high`
    middle = int(np.float32(guess).view(np.int32))
    while True:
        threshold = float(np.int32(middle).view(np.float32))
        seen = kernels.collect(table, threshold, 0)
        if seen.above < k <= seen.above + seen.equal or high - low <= 2:
            return threshold
        if k <= seen.above:
            low = middle
        else:
            high = middle
        middle = (low + high) // 2
