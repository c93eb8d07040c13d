"""The inner loops of one step per message on a CPU, compiled by numba and cached on disk.

steps.py has the definitions. Levels are split into whole and fractional part before anything is
added, all of it exact, so that every loop stays within 32 bits and becomes vector instructions.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.quantisers.kernels.cpu_loops import RUN, _fill_words

# Numbers whose sum stays in the cache while row after row is added.
IN_CACHE = 8192


@njit(nogil=True, cache=True)
def add_squares(bits):
    """The squares of some numbers, given as bits, and the bits of the largest magnitude."""
    size = np.int32(0)
    for i in range(bits.size):
        size = max(size, bits[i] & np.int32(0x7FFFFFFF))
    top = max(size >> np.int32(23), np.int32(1))
    total = np.int64(0)
    for i in range(bits.size):
        magnitude = bits[i] & np.int32(0x7FFFFFFF)
        exponent = magnitude >> np.int32(23)
        hidden = np.int32(0x800000) if exponent > 0 else np.int32(0)
        whole = magnitude & np.int32(0x7FFFFF) | hidden
        shift = min(top - max(exponent, np.int32(1)), np.int32(31))
        cut = np.int64(whole >> shift)
        total += cut * cut
    return total, size


@njit(nogil=True, cache=True)
def round_places(levels, cells, factor, top, key, stream, first, last):
    """Levels of runs [first, last) of one row."""
    words = np.empty(RUN, np.uint32)
    limit = np.float32(top)
    for run in range(first, last):
        source = cells[run * RUN : (run + 1) * RUN]
        target = levels[run * RUN : (run + 1) * RUN]
        _fill_words(words, key, stream, run)
        for i in range(source.size):
            place = source[i] * factor
            place = limit if place > limit else place
            place = -limit if place < -limit else place
            whole = np.int32(place)
            rest = np.int32((place - np.float32(whole)) * np.float32(1 << 24))
            random = np.int32(words[i] >> np.uint32(8))
            target[i] = np.int32(whole + (np.int32(rest + random) >> np.int32(24)))


@njit(nogil=True, cache=True)
def sum_levels(total, levels, steps, first, last):
    """Add up columns [first, last) of all rows, row after row, each level times its row's step."""
    total[first:last] = 0
    for begin in range(first, last, IN_CACHE):
        end = min(begin + IN_CACHE, last)
        for row in range(steps.size):
            step = steps[row]
            source = levels[row]
            for i in range(begin, end):
                total[i] += step * np.float32(source[i])
