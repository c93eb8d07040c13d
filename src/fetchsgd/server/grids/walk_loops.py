"""The walk's loop on a CPU, compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.wire.bit_loops import bucket


@njit(cache=True, nogil=True)
def add_update(total, change, indices, steps):
    for i in range(len(indices)):
        at = indices[i]
        before = np.int64(total[at])
        after = before + steps[i]
        total[at] = after
        change[bucket(before)[0]] -= 1
        change[bucket(after)[0]] += 1
