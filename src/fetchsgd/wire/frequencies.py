"""Frequencies of the 256 symbols of an entropy coder, and how they are written.

Frequencies are whole numbers that add up to 2^14; a symbol that occurs has at least 1. They come
from three sources, all exact integer arithmetic on the reading side:

- a table of the symbols themselves;
- a table of single cells, for symbols of several cells: the product of their frequencies;
- a geometric law, for gaps between positions (gaps.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fetchsgd.quantisers.levels import CELLS_PER_SYMBOL
from fetchsgd.wire.errors import WireError
from fetchsgd.wire.reader import Reader, number_bytes

SYMBOLS = 256
PRECISION = 14
TOTAL = 1 << PRECISION
# Cells get fewer, so that a product of four of them times TOTAL stays below 2^63.
CELL_TOTAL = 1 << 12

Frequencies = NDArray[np.int64]


def normalise(counts: NDArray[np.int64], total: int) -> Frequencies:
    """Frequencies that add up to `total`, in proportion to counts, at least 1 where one occurs."""
    scaled = counts * (total / counts.sum())
    found: Frequencies = np.maximum(np.floor(scaled), counts > 0).astype(np.int64)
    missing = total - int(found.sum())
    if missing > 0:
        best = np.argsort(np.where(counts > 0, found - scaled, np.inf), kind="stable")
        found[best[:missing]] += 1
    for _ in range(-missing):
        # One less where that lengthens the message least.
        loss = np.full(len(counts), np.inf)
        np.divide(counts, found - 1, out=loss, where=found > 1)
        found[np.argmin(loss)] -= 1
    return found


def table_bytes(frequencies: Frequencies) -> bytes:
    """Each frequency as LEB128 up to the last that is not 0; after a 0, how many more follow."""
    out = bytearray()
    zeros = 0
    for frequency in _up_to_last(frequencies):
        if frequency == 0:
            zeros += 1
            continue
        if zeros:
            out += bytes([0, zeros - 1])
            zeros = 0
        out += number_bytes(frequency)
    return bytes(out)


def _up_to_last(frequencies: Frequencies) -> Iterable[int]:
    values: list[int] = frequencies[: int(np.flatnonzero(frequencies)[-1]) + 1].tolist()
    return values


def read_table(reader: Reader, size: int, total: int) -> Frequencies:
    """The opposite of `table_bytes`: a table of `size` entries ends where the sum is met."""
    found = np.zeros(size, dtype=np.int64)
    at, left, after_zeros = 0, total, False
    while left > 0:
        if at >= size:
            raise WireError(f"frequencies add up to {total - left}, not to {total}")
        frequency = reader.number("a frequency", total)
        if frequency == 0:
            if after_zeros:
                raise WireError("a run of zero frequencies is written in two parts")
            at += 1 + reader.byte("a run of zero frequencies")
        elif frequency > left:
            raise WireError(f"frequencies add up to more than {total}")
        else:
            found[at] = frequency
            left -= frequency
            at += 1
        after_zeros = frequency == 0
    return found


def levels(bits: int) -> int:
    """Number of levels of a cell of so many bits: 2 L + 1."""
    return (1 << bits) - 1


@lru_cache
def cells_of_symbols(bits: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All symbols whose cells are in range, and the cells of each, as (symbols, cells)."""
    symbols = np.arange(1 << bits * CELLS_PER_SYMBOL[bits])
    shifts = bits * np.arange(CELLS_PER_SYMBOL[bits])
    cells = (symbols[:, None] >> shifts) & ((1 << bits) - 1)
    valid = (cells < levels(bits)).all(axis=1)
    return symbols[valid], cells[valid]


def cell_counts(counts: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """How often each level occurs, from how often each symbol does."""
    symbols, cells = cells_of_symbols(bits)
    found = np.zeros(levels(bits), dtype=np.int64)
    for column in cells.T:
        np.add.at(found, column, counts[symbols])
    return found


def product_frequencies(cell_frequencies: Frequencies, bits: int) -> Frequencies:
    """Frequencies of symbols whose cells are independent.

    Of the 2^14, every symbol that can occur gets 1; the rest is dealt out by rounding the running
    sum of the products down.
    """
    symbols, cells = cells_of_symbols(bits)
    products = cell_frequencies[cells].prod(axis=1)
    used = products > 0
    sums = np.concatenate([[0], np.cumsum(products[used])])
    starts = np.arange(len(sums)) + (TOTAL - len(sums) + 1) * sums // sums[-1]
    found = np.zeros(SYMBOLS, dtype=np.int64)
    found[symbols[used]] = np.diff(starts)
    return found
