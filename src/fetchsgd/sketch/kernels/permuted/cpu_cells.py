"""The inner loops over the cells of one row, for one_row.py; cpu_loops.py says the rest."""

# mypy: ignore-errors
# Compiled by numba, which has no types and needs none.

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.sketch.kernels.permuted.cpu_loops import WORD, block_at, words_of


@njit(inline="always")
def _coordinate(cell, group, number, numbers, block):
    """What a cell holds of a group; in the last group there may be no such coordinate."""
    first, second = words_of(numbers, number + group)
    t = np.int64(block_at(WORD(cell // block), first, second, numbers))
    place = np.int64(cell % block) ^ np.int64(first & numbers[4])
    return (group * np.int64(numbers[0]) + t) * block + place


@njit(inline="always")
def _load(cell, dim, number, groups, numbers, block):
    """How many coordinates a cell holds: of all groups, but maybe the last."""
    return groups - 1 + (_coordinate(cell, groups - 1, number, numbers, block) < dim)


@njit(nogil=True, cache=True)
def count_loads(loads, cells, dim, number, groups, numbers, block):
    """How many coordinates these cells hold."""
    for n in range(cells.size):
        loads[n] = _load(cells[n], dim, number, groups, numbers, block)


@njit(nogil=True, cache=True)
def tally_cells(row, threshold, dim, number, groups, numbers, block):
    """How many coordinates are in cells above the threshold, and how many cells are on it."""
    above = tied = 0
    for cell in range(row.size):
        magnitude = abs(row[cell])
        if magnitude > threshold:
            above += _load(cell, dim, number, groups, numbers, block)
        tied += magnitude == threshold
    return above, tied


@njit(nogil=True, cache=True)
def list_coordinates(listed, late, row, threshold, whole, dim, number, groups, numbers, block):
    """List what cells above the threshold hold, and what ties hold of the first `whole` groups.

    What ties hold of the next group goes to `late`. How many were written to both.
    """
    written = waiting = 0
    for cell in range(row.size):
        magnitude = abs(row[cell])
        if magnitude >= threshold:
            tie = magnitude == threshold
            for group in range(whole if tie else groups):
                listed[written] = _coordinate(cell, group, number, numbers, block)
                written += listed[written] < dim
            if tie:
                late[waiting] = _coordinate(cell, whole, number, numbers, block)
                waiting += late[waiting] < dim
    return written, waiting
