"""Where random words fall among the steps of a distribution; compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

GUIDE_BITS = 12


@njit(nogil=True, cache=True)
def guide_of(steps):
    """For the first bits of a word: how many steps are below all words that begin so."""
    guide = np.empty(1 << GUIDE_BITS, dtype=np.int64)
    place = 0
    for first in range(guide.size):
        low = np.uint64(first) << np.uint64(64 - GUIDE_BITS)
        while place < steps.size and steps[place] <= low:
            place += 1
        guide[first] = place
    return guide


@njit(nogil=True, cache=True)
def place_of(word, steps, guide):
    """How many steps are at most the word."""
    place = guide[np.int64(word >> np.uint64(64 - GUIDE_BITS))]
    while place < steps.size and steps[place] <= word:
        place += 1
    return place


@njit(nogil=True, cache=True)
def places(words, steps, guide, out):
    for i in range(words.size):
        out[i] = place_of(words[i], steps, guide)
