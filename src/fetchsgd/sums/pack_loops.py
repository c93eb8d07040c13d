"""Numbers of few bits packed one after another, the lowest bit first; compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def pack(cells, bits, out):
    """Fill the bytes `out`, which has just the size that they need."""
    word, held, at = np.uint64(0), 0, 0
    for i in range(cells.size):
        word |= np.uint64(cells[i]) << np.uint64(held)
        held += bits
        while held >= 8:
            out[at] = np.uint8(word & np.uint64(255))
            word >>= np.uint64(8)
            held -= 8
            at += 1
    if held:
        out[at] = np.uint8(word)


@njit(nogil=True, cache=True)
def unpack(data, bits, out):
    """Fill `out`; return the bits that are left over, which must be zero."""
    word, held, at = np.uint64(0), 0, 0
    mask = np.uint64((1 << bits) - 1)
    for i in range(out.size):
        while held < bits:
            word |= np.uint64(data[at]) << np.uint64(held)
            held += 8
            at += 1
        out[i] = np.int32(word & mask)
        word >>= np.uint64(bits)
        held -= bits
    return word
