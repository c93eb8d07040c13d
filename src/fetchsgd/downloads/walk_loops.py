"""The walk's loop on a CPU, compiled by numba."""

from __future__ import annotations

from numba import njit


@njit(cache=True, nogil=True)
def bucket(value):
    """The symbol of an integer in `fetchsgd.wire`, as in wire/integers.py."""
    z = 2 * value if value >= 0 else -2 * value - 1
    if z < 16:
        return z
    exponent = 4
    while z >> (exponent + 1):
        exponent += 1
    return 16 + 4 * (exponent - 4) + ((z >> (exponent - 2)) & 3)


@njit(cache=True, nogil=True)
def add_update(total, change, indices, steps):
    for i in range(len(indices)):
        at = indices[i]
        before = total[at]
        after = before + steps[i]
        total[at] = after
        change[bucket(before)] -= 1
        change[bucket(after)] += 1
