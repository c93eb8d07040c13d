"""The walk's loop on a CPU, compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.wire.chunk_loops import level_symbol


@njit(cache=True, nogil=True)
def add_update(total, filled, change, indices, steps):
    for i in range(len(indices)):
        at = indices[i]
        before = np.int64(total[at])
        after = before + steps[i]
        total[at] = after
        filled[at >> 6] += np.int64(after != 0) - np.int64(before != 0)
        change[at >> 16, level_symbol(before)[0]] -= 1
        change[at >> 16, level_symbol(after)[0]] += 1
