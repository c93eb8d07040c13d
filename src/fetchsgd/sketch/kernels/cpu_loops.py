"""The inner loops of the CPU kernels that add to a table, compiled by numba and cached on disk.

They release the interpreter lock, so that threads run them side by side. A packed placement is
`start << 1 | negative` (hashing.py); `lanes` says how many floats move at once (cpu_lanes.py) and
divides the block.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.sketch.kernels.cpu_lanes import add_lanes

# Blocks of which those that touch a span of columns are listed before any is added.
BATCH = 256
ONE_LANE = (0,)


@njit(nogil=True, cache=True)
def add_runs(out, vector, first, placements, block, lanes, left, right):
    """Add a piece that starts at coordinate `first` to columns [left, right) of a row."""
    b, within = first // block, first % block
    at = 0
    if within > 0:  # a block that an earlier piece began
        at = min(block - within, vector.size)
        _add_part(out, vector[:at], placements[b], within, left, right)
        b += 1
    count = (vector.size - at) // block
    blocks = vector[at : at + count * block]
    if left == 0 and right == out.size:
        _add_blocks(out, blocks, placements[b : b + count], None, count, block, lanes, left, right)
    else:
        _add_some_blocks(out, blocks, placements[b : b + count], block, lanes, left, right)
    if at + blocks.size < vector.size:
        _add_part(out, vector[at + blocks.size :], placements[b + count], 0, left, right)


@njit(nogil=True, cache=True)
def _add_some_blocks(out, vector, placements, block, lanes, left, right):
    """Add those blocks that touch columns [left, right), batch by batch."""
    chosen = np.empty(BATCH, dtype=np.int64)
    for first in range(0, placements.size, BATCH):
        batch = placements[first : first + BATCH]
        count = 0
        for n in range(batch.size):
            start = batch[n] >> 1
            stop = start + block
            chosen[count] = n
            # Without a branch, which would be a coin toss and mispredicted half the time.
            count += (start < right) & (stop > left) | (stop > out.size)
        blocks = vector[first * block : (first + BATCH) * block]
        _add_blocks(out, blocks, batch, chosen, count, block, lanes, left, right)


@njit(nogil=True, cache=True)
def _add_blocks(out, vector, placements, chosen, count, block, lanes, left, right):
    """Add the first `count` of the chosen blocks, or of all if `chosen` is None."""
    m = 0
    while True:
        m = _add_whole(out, vector, placements, chosen, m, count, block, lanes, left, right)
        if m == count:
            return
        n = m if chosen is None else chosen[m]
        part = vector[n * block : (n + 1) * block]
        _add_part(out, part, placements[n], 0, left, right)
        m += 1


@njit(nogil=True, cache=True)
def _add_whole(out, vector, placements, chosen, first, count, block, lanes, left, right):
    """Add blocks from number `first` on, up to one that does not lie within [left, right).

    Its number is returned. Nothing rare is in this loop, which keeps it tight.
    """
    for m in range(first, count):
        n = m if chosen is None else chosen[np.uintp(m)]
        packed = placements[np.uintp(n)]
        start = packed >> 1
        if not left <= start <= right - block:
            return m
        if block == len(lanes):  # a constant, so without a loop
            add_lanes(out, start, vector, n * len(lanes), packed, lanes)
        else:
            for i in range(0, block, len(lanes)):
                add_lanes(out, start + i, vector, n * block + i, packed, lanes)
    return count


@njit(nogil=True, cache=True)
def _add_part(out, part, packed, within, left, right):
    """Add a part of a block, from its place `within`, to columns [left, right)."""
    column = (packed >> 1) + within
    for i in range(part.size):
        if column >= out.size:
            column -= out.size
        if left <= column < right:
            add_lanes(out, column, part, i, packed, ONE_LANE)
        column += 1


@njit(nogil=True, cache=True)
def add_entries(out, indices, values, placements, block):
    """Add single coordinates to a row."""
    for n in range(indices.size):
        b = indices[n] // block
        packed = placements[b]
        column = (packed >> 1) + indices[n] - b * block
        if column >= out.size:
            column -= out.size
        add_lanes(out, column, values, n, packed, ONE_LANE)


@njit(nogil=True, cache=True)
def sum_of_squares(row):
    """In float64 and in one fixed order: sixteen interleaved sums, then those."""
    sums = np.zeros(16)
    whole = row.size // 16 * 16
    for at in range(0, whole, 16):
        for lane in range(16):
            sums[lane] += np.float64(row[at + lane]) ** 2
    total = 0.0
    for lane in range(16):
        total += sums[lane]
    for at in range(whole, row.size):
        total += np.float64(row[at]) ** 2
    return total
