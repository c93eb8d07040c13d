"""The ledger's walk over a dense update, compiled by numba."""

# mypy: ignore-errors
# Compiled by numba, which has no types and needs none.

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def touch(changed, update, version, counts):
    """Move each coordinate that the update moves to this version, and count them anew.

    Neighbours mostly share a version, so these are counted together: to add to one place again and
    again would wait for each addition.
    """
    before, same, moved = np.int64(0), 0, 0
    for i in range(update.size):
        if update[i] != 0:
            own = np.int64(changed[i])
            if own != before:
                counts[before] -= same
                before, same = own, 0
            same += 1
            moved += 1
            changed[i] = version
    counts[before] -= same
    counts[version] += moved
