"""The inner loops that find what may be large from one bit for each cell.

A median reaches a threshold only if at least half of the rows do. So a bit for each cell says
whether its magnitude does, and rows vote on all coordinates of a block at once. What has enough
votes is estimated by itself. The bits of a block are one number, or several of 64 bits; those of
all rows fit into a cache that the cells do not fit into.
"""

# mypy: ignore-errors
# Compiled by numba, which has no types and needs none.

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.sketch.kernels.cpu_lanes import lowest_bit, reached_lanes, set_bits
from fetchsgd.sketch.kernels.permuted.cpu_loops import (
    CHUNK,
    WORD,
    draw_sign,
    place_blocks,
    words_of,
)

# Cells that are compared with a threshold at once.
LANES = (0,) * 16
# Bits that change places, for each bit of a flip.
EVEN = np.array(
    [0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F,
     0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0x00000000FFFFFFFF],
    dtype=np.uint64,
)  # fmt: skip


@njit(nogil=True, cache=True)
def mark_cells(bits, cells, threshold):
    """Whether cells reach the threshold, 16 to a number; how many do, or -1 if there is a NaN."""
    marked = 0
    whole = cells.size // len(LANES)
    for n in range(whole):
        reached = reached_lanes(cells, n * len(LANES), threshold, LANES)
        bits[n] = np.uint16(reached)
        marked += set_bits(reached)
        if reached_lanes(cells, n * len(LANES), np.float32(0), LANES) != 0xFFFF:
            return -1
    bits[whole:] = 0
    for i in range(whole * len(LANES), cells.size):
        if np.isnan(cells[i]):
            return -1
        if abs(cells[i]) >= threshold:
            bits[whole] |= np.uint16(1 << (i - whole * len(LANES)))
            marked += 1
    return marked


@njit(nogil=True, cache=True)
def collect_voted(
    indices, values, threshold, room_above, room_equal, table, start, stop,
    number, groups, numbers, block, bits, needed,
):  # fmt: skip
    """As collect_estimates, from the bits of all rows; `start` must begin a block."""
    span = np.int64(numbers[0]) * block
    each = max(block // 64, 1)
    step = max(CHUNK // block, 1)
    rows = table.shape[0]
    columns = np.empty((rows, step), dtype=np.uint32)
    counted = np.empty((needed, step * each), dtype=bits.dtype)
    ordered = np.empty(rows, dtype=np.float32)
    kept = above = equal = 0
    at = start
    while at < stop:
        group = at // span
        t = (at - group * span) // block
        blocks = min(step, np.int64(numbers[0]) - t, (stop - at + block - 1) // block)
        counted[:] = 0
        for row in range(rows):
            first, second = words_of(numbers, number + row * groups + group)
            place_blocks(columns[row, :blocks], WORD(t), first, second, numbers)
            flip = np.int64(first & numbers[4])
            _count_votes(counted, columns[row, :blocks], bits[row], flip, each)
        voted = counted[needed - 1]
        for n in range(blocks * each):
            left = np.int64(voted[n])
            while left != 0:
                within = (n % each) * 64 + lowest_bit(left)
                left &= left - 1
                i = at + n // each * block + within
                if i >= stop:
                    break
                value = _median_of(
                    table, columns[:, n // each], i - group * span, number + group, groups,
                    numbers, block, ordered,
                )  # fmt: skip
                if abs(value) > threshold:
                    take = above < room_above
                    above += 1
                elif abs(value) == threshold:
                    take = equal < room_equal
                    equal += 1
                else:
                    continue
                if take:
                    indices[kept] = i
                    values[kept] = value
                    kept += 1
        at += blocks * block
    return kept, above, equal


@njit(nogil=True, cache=True)
def _count_votes(counted, columns, bits, flip, each):
    """Row i of `counted` says what has more than i votes."""
    votes = np.empty(columns.size * each, dtype=bits.dtype)
    if each == 1:
        for n in range(columns.size):
            votes[n] = bits[columns[n]]
    else:
        around = flip // 64
        for n in range(columns.size):
            for word in range(each):
                votes[n * each + word] = bits[np.int64(columns[n]) * each + (word ^ around)]
    for place in range(6):
        if flip >> place & 1:
            _flip_bits(votes, bits.dtype.type(EVEN[place]), bits.dtype.type(1 << place))
    for i in range(counted.shape[0] - 1, 0, -1):
        for n in range(votes.size):
            counted[i, n] |= counted[i - 1, n] & votes[n]
    for n in range(votes.size):
        counted[0, n] |= votes[n]


@njit(nogil=True, cache=True)
def _flip_bits(votes, even, step):
    """Bits change places with those that are `step` away."""
    for n in range(votes.size):
        votes[n] = ((votes[n] & even) << step) | ((votes[n] >> step) & even)


@njit(nogil=True, cache=True)
def _median_of(table, columns, within, group, groups, numbers, block, ordered):
    """The estimate of a coordinate, given the columns of its block in all rows."""
    rows = table.shape[0]
    for row in range(rows):
        first, second = words_of(numbers, group + row * groups)
        place = np.int64(within % block) ^ np.int64(first & numbers[4])
        cell = table[row, np.int64(columns[row]) * block + place]
        value = -cell if draw_sign(within, second, numbers) else cell
        at = row
        while at > 0 and ordered[at - 1] > value:
            ordered[at] = ordered[at - 1]
            at -= 1
        ordered[at] = value
    if rows % 2 == 1:
        return ordered[rows // 2]
    half = np.float32(0.5)
    return half * ordered[rows // 2 - 1] + half * ordered[rows // 2]
