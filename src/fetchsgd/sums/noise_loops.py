"""Noise from a seed, for many simulated clients; compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.privacy.table_loops import place_of
from fetchsgd.quantisers.kernels.cpu_loops import RUN, _fill_words


@njit(nogil=True, cache=True)
def draw_row(out, steps, guide, first, keys, stream):
    """A number for each cell of one client; two words of 32 bits make one of 64."""
    high, low = np.empty(RUN, np.uint32), np.empty(RUN, np.uint32)
    for run in range(-(-out.size // RUN)):
        _fill_words(high, keys[0], stream, run)
        _fill_words(low, keys[1], stream, run)
        target = out[run * RUN : (run + 1) * RUN]
        for i in range(target.size):
            word = np.uint64(high[i]) << np.uint64(32) | np.uint64(low[i])
            target[i] = place_of(word, steps, guide) + first
