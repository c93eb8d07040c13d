"""The inner loops of the CPU kernels that read a table, compiled by numba and cached on disk.

What cpu_loops.py says of its loops holds here too. `rows` is a tuple with as many entries as the
table has rows, for which the median over rows is compiled; it is empty where those are too many.
"""

# mypy: ignore-errors
# Compiled by numba, which has no types and needs none.

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.sketch.kernels.cpu_lanes import lowest_bit, median_lanes, reached_lanes

# Coordinates that are estimated before any is looked at.
WINDOW = 256
# Estimates that are compared with a threshold at once.
GROUP = (0,) * 16
ONE_LANE = (0,)


@njit(nogil=True, cache=True)
def _fill_window(window, table, placements, b, block, lanes, rows):
    """The estimates of all blocks from b on that the window has room for."""
    n = 0
    while True:
        n = _fill_whole(window, n, table, placements, b, block, lanes, rows)
        if n * block >= window.size:
            return
        for at in range(n * block, min((n + 1) * block, window.size)):
            _fill_one(window, at, table, at - n * block, placements, b + n, rows)
        n += 1


@njit(nogil=True, cache=True)
def _fill_whole(window, first, table, placements, b, block, lanes, rows):
    """Fill the window from its block `first` on, up to one that wraps around or is cut off.

    Its number is returned. Nothing rare is in this loop, which keeps it tight.
    """
    if len(rows) == 0:
        return first
    last_start = table.shape[1] - block
    for n in range(first, window.size // block):
        whole = True
        for row in range(len(rows)):
            whole &= placements[row, np.uintp(b + n)] >> 1 <= last_start
        if not whole:
            return n
        if block == len(lanes):  # a constant, so without a loop
            median_lanes(window, n * len(lanes), table, 0, placements, b + n, rows, lanes)
        else:
            for i in range(0, block, len(lanes)):
                median_lanes(window, n * block + i, table, i, placements, b + n, rows, lanes)
    return max(first, window.size // block)


@njit(nogil=True, cache=True)
def _fill_one(out, at, table, within, placements, b, rows):
    """`out[at]` becomes the estimate of place `within` of block b."""
    if len(rows) > 0:
        median_lanes(out, at, table, within, placements, b, rows, ONE_LANE)
    else:
        out[at] = _median_of_many(table, placements[:, b], within)


@njit(nogil=True, cache=True)
def _median_of_many(table, packed, within):
    """The estimate of one coordinate, by insertion sort over its rows."""
    rows, cols = table.shape
    ordered = np.empty(rows, dtype=np.float32)
    for row in range(rows):
        cell = table[row, ((packed[row] >> 1) + within) % cols]
        value = -cell if packed[row] & 1 else cell
        at = row
        while at > 0 and ordered[at - 1] > value:
            ordered[at] = ordered[at - 1]
            at -= 1
        ordered[at] = value
    if rows % 2 == 1:
        return ordered[rows // 2]
    half = np.float32(0.5)
    return half * ordered[rows // 2 - 1] + half * ordered[rows // 2]


@njit(nogil=True, cache=True)
def write_estimates(out, table, placements, block, lanes, rows, start, stop):
    """The estimates of blocks [start, stop), written to their place in `out`."""
    _fill_window(out[start * block : stop * block], table, placements, start, block, lanes, rows)


@njit(nogil=True, cache=True)
def query_entries(out, indices, table, placements, block, rows):
    """The estimates of single coordinates."""
    for n in range(indices.size):
        b = indices[n] // block
        _fill_one(out, n, table, indices[n] - b * block, placements, b, rows)


@njit(nogil=True, cache=True)
def collect_estimates(
    indices,
    values,
    threshold,
    room_above,
    room_equal,
    table,
    dim,
    placements,
    block,
    lanes,
    rows,
    start,
    stop,
):
    """Keep the estimates of blocks [start, stop) that reach the threshold, and count them all."""
    step = max(WINDOW // block, 1)
    # Whole groups; what lies behind the last estimate is not a number and reaches nothing.
    window = np.empty(-(-step * block // len(GROUP)) * len(GROUP), dtype=np.float32)
    last = min(stop * block, dim)
    kept = above = equal = 0
    for b in range(start, stop, step):
        first = b * block
        seen = min(step * block, last - first)
        window[seen:] = np.nan
        _fill_window(window[:seen], table, placements, b, block, lanes, rows)
        for group in range(0, window.size, len(GROUP)):
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
