"""The inner loops of the sketch by permutation that read a table: cpu_loops.py says the rest.

`rows` is a tuple with as many entries as the table has rows, for which the median over rows is
compiled; it is empty where those are too many.
"""

# mypy: ignore-errors
# Compiled by numba, which has no types and needs none.

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.sketch.kernels.cpu_lanes import lowest_bit, reached_lanes
from fetchsgd.sketch.kernels.permuted.cpu_lanes import median_flipped
from fetchsgd.sketch.kernels.permuted.cpu_loops import (
    CHUNK,
    WORD,
    draw_signs,
    locate_one,
    place_blocks,
    words_of,
)

# Estimates that are compared with a threshold at once.
GROUP = (0,) * 16


@njit(nogil=True, cache=True)
def query_entries(out, indices, table, number, groups, numbers, block):
    """The estimates of single coordinates, by insertion sort over rows."""
    span = np.int64(numbers[0]) * block
    rows = table.shape[0]
    ordered = np.empty(rows, dtype=np.float32)
    half = np.float32(0.5)
    for n in range(indices.size):
        group = indices[n] // span
        within = indices[n] - group * span
        for row in range(rows):
            column, place, bits = locate_one(within, number + row * groups + group, numbers, block)
            cell = table[row, column * block + place]
            value = -cell if bits else cell
            at = row
            while at > 0 and ordered[at - 1] > value:
                ordered[at] = ordered[at - 1]
                at -= 1
            ordered[at] = value
        if rows % 2 == 1:
            out[n] = ordered[rows // 2]
        else:
            out[n] = half * ordered[rows // 2 - 1] + half * ordered[rows // 2]


@njit(nogil=True, cache=True)
def write_estimates(out, start, table, number, groups, numbers, block, lanes, rows):
    """The estimates of coordinates start, start + 1, ...; a block must begin there."""
    span = np.int64(numbers[0]) * block
    at = 0
    while at < out.size:
        group = (start + at) // span
        within = (start + at) - group * span
        size = min(span - within, out.size - at)
        whole = size // block * block if len(rows) > 0 else 0
        if whole > 0:
            _estimate_blocks(
                out[at : at + whole], within // block, table, number + group, groups, numbers,
                block, lanes, rows,
            )  # fmt: skip
        if whole < size:
            rest = np.arange(start + at + whole, start + at + size)
            query_entries(out[at + whole : at + size], rest, table, number, groups, numbers, block)
        at += size


@njit(nogil=True, cache=True)
def _estimate_blocks(out, t, table, group, groups, numbers, block, lanes, rows):
    """The estimates of whole blocks t, t + 1, ... of a group."""
    count = out.size // block
    run = t * block // 32
    runs = ((t + count) * block + 31) // 32 - run
    shift = t * block - run * 32
    columns = np.empty((len(rows), count), dtype=np.uint32)
    words = np.empty((len(rows), runs), dtype=np.uint32)
    flips = np.empty(len(rows), dtype=np.uint32)
    for row in range(len(rows)):
        first, second = words_of(numbers, group + row * groups)
        flips[row] = first & numbers[4]
        place_blocks(columns[row], WORD(t), first, second, numbers)
        draw_signs(words[row], WORD(run), second, numbers)
    around = WORD(~np.uint32(len(lanes) - 1))
    cells = np.empty(len(rows), dtype=np.uint32)
    bits = np.empty(len(rows), dtype=np.uint32)
    for n in range(count):
        for i in range(0, block, len(lanes)):
            bit = np.uint64(shift + n * block + i)
            for row in range(len(rows)):
                place = WORD(WORD(i) ^ WORD(flips[row] & around))
                cells[row] = WORD(WORD(columns[row, n] * WORD(block)) + place)
                bits[row] = WORD(words[row, bit >> np.uint64(5)] >> WORD(bit & np.uint64(31)))
            median_flipped(out, np.uint64(n * block + i), table, cells, flips, bits, rows, lanes)


@njit(nogil=True, cache=True)
def collect_estimates(
    indices, values, threshold, room_above, room_equal, table, start, stop,
    number, groups, numbers, block, lanes, rows,
):  # fmt: skip
    """Keep the estimates of coordinates [start, stop) that reach the threshold, and count all."""
    step = max(CHUNK, block)
    # Whole groups; what lies behind the last estimate is not a number and reaches nothing.
    window = np.empty(max(step, len(GROUP)), dtype=np.float32)
    kept = above = equal = 0
    for first in range(start, stop, step):
        seen = min(step, stop - first)
        window[seen:] = np.nan
        write_estimates(window[:seen], first, table, number, groups, numbers, block, lanes, rows)
        for group in range(0, seen, len(GROUP)):
            reached = reached_lanes(window, group, threshold, GROUP)
            while reached != 0:
                i = group + lowest_bit(reached)
                reached &= reached - 1
                if abs(window[i]) > threshold:
                    take = above < room_above
                    above += 1
                else:
                    take = equal < room_equal
                    equal += 1
                if take:
                    indices[kept] = first + i
                    values[kept] = window[i]
                    kept += 1
    return kept, above, equal
