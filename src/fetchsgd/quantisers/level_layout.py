"""How cells of few bits lie in memory: runs of 256, several levels to a symbol of one byte.

    bits    cells per symbol  symbols per run  stride
    2       4                 64               64        (ternary: -1, 0, 1)
    3       2                 128              128
    4       2                 128              128
    6, 8    1                 256              256

A level from -L to L is stored as `level + L`. Symbol j of a run holds cells j, j + stride,
j + 2 stride, ... in bits 0, bits, 2 bits, ...: cells of a symbol lie a whole stride apart, so that
kernels move in vectors. The last run is filled up with level 0.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

RUN = 256
BITS = (2, 3, 4, 6, 8)
CELLS_PER_SYMBOL = {2: 4, 3: 2, 4: 2, 6: 1, 8: 1}


def top_level(bits: int) -> int:
    """L: levels go from -L to L."""
    return int(2 ** (bits - 1) - 1)


def num_levels(bits: int) -> int:
    """2 L + 1."""
    return (1 << bits) - 1


def num_runs(count: int) -> int:
    """Runs that `count` cells fill, the last one perhaps in part."""
    return -(-count // RUN)


def num_symbols(count: int, bits: int) -> int:
    """Symbols of these runs."""
    return num_runs(count) * RUN // CELLS_PER_SYMBOL[bits]


@lru_cache
def cells_of_symbols(bits: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All symbols whose cells are in range, and the cells of each, as (symbols, cells)."""
    symbols = np.arange(1 << bits * CELLS_PER_SYMBOL[bits])
    shifts = bits * np.arange(CELLS_PER_SYMBOL[bits])
    cells = (symbols[:, None] >> shifts) & ((1 << bits) - 1)
    valid = (cells < num_levels(bits)).all(axis=1)
    return symbols[valid], cells[valid]
