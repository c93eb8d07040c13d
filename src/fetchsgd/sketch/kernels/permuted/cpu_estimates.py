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
from fetchsgd.sketch.kernels.permuted.cpu_lanes import (
    copy_flipped,
    median_of_rows,
    prefetch,
)
from fetchsgd.sketch.kernels.permuted.cpu_loops import (
    AHEAD,
    CHUNK,
    READS,
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
    """The estimates of whole blocks t, t + 1, ... of a group, a chunk at a time."""
    step = max(CHUNK // block, 1)
    signed = np.empty((len(rows), step * block), dtype=np.float32)
    columns = np.empty(step, dtype=np.uint32)
    words = np.empty(step * block // 32 + 2, dtype=np.uint32)
    for at in range(0, out.size, step * block):
        part = out[at : at + step * block]
        first = t + at // block
        for row in range(len(rows)):
            into = part if len(rows) == 1 else signed[row]
            _sign_cells(
                into, part.size // block, first, table[row], group + row * groups, numbers,
                columns, words, block, lanes,
            )  # fmt: skip
        if len(rows) > 1:
            for i in range(0, part.size, len(lanes)):
                median_of_rows(part, i, signed, rows, lanes)


@njit(nogil=True, cache=True)
def _sign_cells(out, count, t, cells, group, numbers, columns, words, block, lanes):
    """The signed cells of a row that `count` blocks from t on have."""
    first, second = words_of(numbers, group)
    flip = WORD(first & numbers[4])
    run = t * block // 32
    place_blocks(columns[:count], WORD(t), first, second, numbers)
    runs = ((t + count) * block + 31) // 32 - run
    draw_signs(words[:runs], WORD(run), second, numbers)
    around = np.uint64(flip & WORD(~np.uint32(len(lanes) - 1)))
    shift = np.uint64(t * block - run * 32)
    for n in range(count):
        prefetch(cells, np.uint64(columns[min(n + AHEAD, count - 1)]) * np.uint64(block), READS)
        target, source = np.uint64(n * block), np.uint64(columns[n]) * np.uint64(block)
        for i in range(0, block, len(lanes)):
            bit = shift + target + np.uint64(i)
            bits = WORD(words[bit >> np.uint64(5)] >> WORD(bit & np.uint64(31)))
            copy_flipped(
                out, target + np.uint64(i), cells, source + (np.uint64(i) ^ around), flip, bits,
                lanes,
            )  # fmt: skip


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
