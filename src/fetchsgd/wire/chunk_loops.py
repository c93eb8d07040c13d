"""Counting over chunks of 64 coordinates, and the symbols of their values, compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.wire.bit_loops import _top_bit, _zigzag

CHUNK = 64
CLASSES = 9
# Chunks that share a table of values.
PAGE = 1024
# Values below this many (0, -1, 1, -2, ... as 0, 1, 2, 3, ...) have symbols of their own.
DIRECT = 64


@njit(nogil=True, cache=True)
def chunk_class(near):
    """What the number of nonzeros of the chunks before, `near`, is taken for: its bit length."""
    found = 0
    while near > 0 and found < CLASSES - 1:
        near >>= 1
        found += 1
    return found


@njit(nogil=True, cache=True)
def count_chunks(indices, first, counts):
    """How many indices lie in each chunk, from coordinate `first` on."""
    for i in range(indices.size):
        counts[(indices[i] - first) >> 6] += 1


@njit(nogil=True, cache=True)
def count_classes(counts, span, out, nonzeros):
    """How often a chunk of each class has each number of nonzeros, in segments of `span` chunks.

    The nonzeros of each segment are counted too; segments that have none are left out.
    """
    for segment in range(nonzeros.size):
        first, last = segment * span, min((segment + 1) * span, counts.size)
        total = 0
        for j in range(first, last):
            total += counts[j]
        nonzeros[segment] = total
        if total == 0:
            continue
        a, b, c, d = 0, 0, 0, 0
        for j in range(first, last):
            n = np.int64(counts[j])
            out[chunk_class(a + b + c + d), n] += 1
            a, b, c, d = n, a, b, c


@njit(nogil=True, cache=True)
def level_symbol(value):
    """The symbol of an integer of 64 bits, and how many extra bits it has.

    Finer than those of integers.py: sums of steps have a few values that are frequent.
    """
    z = _zigzag(value)
    if z < np.uint64(DIRECT):
        return np.int64(z), 0
    top = _top_bit(z)
    return DIRECT + 2 * (top - 6) + np.int64((z >> np.uint64(top - 1)) & np.uint64(1)), top - 1


@njit(nogil=True, cache=True)
def extra_bits(symbol):
    return 0 if symbol < DIRECT else ((symbol - DIRECT) >> 1) + 5


@njit(nogil=True, cache=True)
def level_of(symbol, bits):
    """The integer of a symbol and its extra bits."""
    z = np.uint64(symbol)
    if symbol >= DIRECT:
        size = np.uint64(extra_bits(symbol))
        z = ((np.uint64(2) | (z & np.uint64(1))) << size) | bits
    return np.int64(z >> np.uint64(1)) ^ -np.int64(z & np.uint64(1))


@njit(nogil=True, cache=True)
def count_values(indices, values, first, out):
    """How often each symbol occurs in each page, from coordinate `first` on."""
    for i in range(values.size):
        out[(indices[i] - first) // (PAGE * CHUNK), level_symbol(values[i])[0]] += 1


@njit(nogil=True, cache=True)
def count_levels(levels, counts, symbols):
    """Nonzeros of each chunk of a vector, and how often each symbol occurs in each page.

    Returns the sum of the magnitudes of values without symbols of their own.
    """
    larger = np.int64(0)
    for j in range(counts.size):
        n = 0
        for i in range(j * CHUNK, min((j + 1) * CHUNK, levels.size)):
            if levels[i] != 0:
                n += 1
                symbol, extra = level_symbol(np.int64(levels[i]))
                symbols[j // PAGE, symbol] += 1
                if extra:
                    larger += abs(np.int64(levels[i]))
        counts[j] = n
    return larger


@njit(nogil=True, cache=True)
def list_levels(levels, indices, values):
    """Places and values of what is not zero; both have just the right size."""
    n = 0
    for i in range(levels.size):
        if levels[i] != 0:
            indices[n] = i
            values[n] = levels[i]
            n += 1
