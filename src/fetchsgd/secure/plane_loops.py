"""Loops over planes of bits, compiled by numba and cached on disk; planes.py says how they lie."""

from __future__ import annotations

import numpy as np
from numba import njit

_0 = np.uint64(0)
_1 = np.uint64(1)
_LANES = 64


@njit(nogil=True, cache=True)
def add(total, other, bits):
    """Add `other` to `total`, cell by cell."""
    carry = np.zeros(_LANES, dtype=np.uint64)
    for first in range(0, total.size, _LANES * bits):
        width = min(_LANES, (total.size - first) // bits)
        carry[:] = _0
        for plane in range(first, first + width * bits, width):
            # Slices begin at zero, which is what lets the compiler use vector registers.
            a, b = total[plane : plane + width], other[plane : plane + width]
            for lane in range(width):
                x, y, c = a[lane], b[lane], carry[lane]
                a[lane] = x ^ y ^ c
                carry[lane] = (x & y) | (c & (x ^ y))


@njit(nogil=True, cache=True)
def subtract(total, other, bits):
    """Subtract `other` from `total`, cell by cell."""
    borrow = np.zeros(_LANES, dtype=np.uint64)
    for first in range(0, total.size, _LANES * bits):
        width = min(_LANES, (total.size - first) // bits)
        borrow[:] = _0
        for plane in range(first, first + width * bits, width):
            a, b = total[plane : plane + width], other[plane : plane + width]
            for lane in range(width):
                x, y, c = a[lane], b[lane], borrow[lane]
                a[lane] = x ^ y ^ c
                borrow[lane] = (~x & y) | (c & ~(x ^ y))


@njit(nogil=True, cache=True)
def _first_word(group, groups, bits):
    """Where bit 0 of a group stands, and how far apart its bits are."""
    block = group // _LANES
    width = min(_LANES, groups - block * _LANES)
    return block * _LANES * bits + group % _LANES, width


@njit(nogil=True, cache=True)
def pack(cells, bits, words):
    groups = words.size // bits
    for group in range(groups):
        at, step = _first_word(group, groups, bits)
        first = group * 64
        count = min(64, cells.size - first)
        for bit in range(bits):
            word = _0
            for i in range(count):
                word |= ((np.uint64(cells[first + i]) >> np.uint64(bit)) & _1) << np.uint64(i)
            words[at + bit * step] = word


@njit(nogil=True, cache=True)
def unpack(words, bits, cells):
    groups = words.size // bits
    for group in range(groups):
        at, step = _first_word(group, groups, bits)
        first = group * 64
        count = min(64, cells.size - first)
        for bit in range(bits):
            word = words[at + bit * step]
            for i in range(count):
                cells[first + i] |= np.uint32(((word >> np.uint64(i)) & _1) << np.uint64(bit))
