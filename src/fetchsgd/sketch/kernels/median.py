"""The median over rows as a fixed list of compare-exchanges.

A sorting network has no branches, so a kernel can run it on whole vectors of estimates at once.
We take Batcher's odd-even merge sort for any number of rows and keep only the steps that the
middle one (odd) or two (even) outputs depend on.
"""

from __future__ import annotations

Network = tuple[tuple[int, int], ...]


def middle(rows: int) -> tuple[int, int]:
    """Positions of the lower and the upper median among `rows` sorted values; equal when odd."""
    return (rows - 1) // 2, rows // 2


def median_network(rows: int) -> Network:
    """Pairs (i, j), i < j: in this order, put the smaller value at i and the larger at j."""
    needed = set(middle(rows))
    kept = []
    for low, high in reversed(_batcher(rows)):
        if low in needed or high in needed:
            needed |= {low, high}
            kept.append((low, high))
    return tuple(reversed(kept))


def _batcher(n: int) -> list[tuple[int, int]]:
    """Batcher's merge exchange (Knuth, The Art of Computer Programming 3, algorithm 5.2.2M)."""
    pairs: list[tuple[int, int]] = []
    top = 1 << max(n - 1, 0).bit_length() >> 1
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while d > 0:
            pairs += [(i, i + d) for i in range(n - d) if i & p == r]
            d, q, r = q - p, q >> 1, p
        p >>= 1
    return pairs
