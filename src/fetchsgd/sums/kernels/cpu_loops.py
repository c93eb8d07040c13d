"""The inner loops of the rotation on a CPU, compiled by numba and cached on disk.

Butterflies are done for groups of up to 64 rows, some columns at a time, in a buffer that stays in
the first cache: first groups of neighbours, then groups of rows that are 64 apart. Three steps of
butterflies go over eight rows in one pass. None of this changes the order of additions. Loops over
columns have a fixed length, so that they become plain vector instructions.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.sums.kernels.cpu_lanes import LANES, butterfly_lanes, flip_lanes

WIDTH = 32
GROUP = 64

_32 = np.uint64(32)
_31 = np.uint32(31)
_1 = np.uint32(1)


@njit(nogil=True, cache=True, inline="always")
def _signs(words, t):
    """The bits of 32 cells from t on; `words` has one more than it needs."""
    low, high = np.uint64(np.uint32(words[t >> 5])), np.uint64(np.uint32(words[(t >> 5) + 1]))
    return np.uint32((low | high << _32) >> np.uint64(t & 31))


@njit(nogil=True, cache=True)
def _step(buffer, half, rows):
    """The butterflies of rows that are `half` apart, then 2 `half`, up to as many rows."""
    h = half * WIDTH
    for first in range(0, buffer.size, len(rows) * h):
        for at in range(first, first + h, LANES):
            butterfly_lanes(buffer, at, h, rows)


@njit(nogil=True, cache=True)
def _butterflies(buffer, rows):
    """All steps of a group, from neighbours on."""
    half = 1
    while 4 * half < rows:
        _step(buffer, half, (0, 0, 0, 0, 0, 0, 0, 0))
        half *= 8
    if 2 * half < rows:
        _step(buffer, half, (0, 0, 0, 0))
    elif half < rows:
        _step(buffer, half, (0, 0))


@njit(nogil=True, cache=True)
def _move(target, at, source, start, inside, signs):
    """Bits of so many cells of a row, negated where `signs` says so."""
    whole = inside - inside % LANES
    for j in range(0, whole, LANES):
        flip_lanes(target, at + j, source, start + j, np.uint32(signs >> np.uint32(j)))
    for j in range(whole, inside):
        flip = np.uint32(((signs >> np.uint32(j)) & _1) << _31)
        target[at + j] = source[start + j] ^ flip


@njit(nogil=True, cache=True)
def _fill(target, at, inside, signs):
    """What lies behind the last cell: zeros, which are negated as well; -0 is not 0 to the bit."""
    for j in range(inside, WIDTH):
        target[at + j] = np.uint32(((signs >> np.uint32(j)) & _1) << _31)


@njit(nogil=True, cache=True)
def rotate_group(out, row, words, blocks, first, stride, rows, flips, scale, buffer):
    """Butterflies of `rows` rows of the matrix, from `first` on and `stride` apart.

    flips: 1 to apply signs before, 2 after. Numbers are given and written as bits.
    """
    bits, none = buffer.view(np.uint32), np.uint32(0)
    for column in range(0, blocks, WIDTH):
        width = min(WIDTH, blocks - column)
        for r in range(rows):
            start = (first + r * stride) * blocks + column
            inside = max(min(width, row.size - start), 0)
            signs = _signs(words, start) if flips == 1 else none
            _move(bits, r * WIDTH, row, start, inside, signs)
            if inside < WIDTH:
                _fill(bits, r * WIDTH, inside, signs)
        _butterflies(buffer, rows)
        if scale != 1:
            for j in range(buffer.size):
                buffer[j] *= scale
        for r in range(rows):
            start = (first + r * stride) * blocks + column
            inside = max(min(width, out.size - start), 0)
            signs = _signs(words, start) if flips == 2 else none
            _move(out, start, bits, r * WIDTH, inside, signs)
