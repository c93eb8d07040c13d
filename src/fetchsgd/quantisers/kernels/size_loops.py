"""The predicted size of one message's levels on a CPU: level_sizes.py is for many at once.

A server needs it for each reply, and some forty operations on 256 numbers would take a third as
long as the decoder. What is left to torch is what would not be the same to the bit here.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.wire.rans import SHORT, TOTAL
from fetchsgd.wire.rans_loops import LANES
from fetchsgd.wire.segments import EXPANSION, SEGMENT
from fetchsgd.wire.sizes import LANE_BYTES


@njit(nogil=True, cache=True)
def _number_size(value):
    """Bytes of a number below 2^21 as LEB128."""
    return 1 + (value >= 1 << 7) + (value >= 1 << 14)


@njit(nogil=True, cache=True)
def list_shares(counts, shares):
    """What each symbol would have of TOTAL, 0 where that is at most 1; how many such occur."""
    factor = TOTAL / max(counts.sum(), 1)
    rare = 0
    for i in range(counts.size):
        share = counts[i] * factor
        rare += 0 < share <= 1
        shares[i] = share if share > 1 else 0.0
    return rare


@njit(nogil=True, cache=True)
def table_bytes(counts, shares, rare, left, inverse):
    """Bytes of a table of frequencies; and TOTAL by each frequency."""
    table, after_zeros = 0, False
    for i in range(counts.size):
        inverse[i] = TOTAL
        if counts[i] == 0:
            after_zeros = True
            continue
        frequency = shares[i] * (TOTAL - rare) / left if shares[i] > 0 else 1.0
        table += _number_size(frequency) + 2 * after_zeros
        inverse[i] = TOTAL / max(frequency, 1.0)
        after_zeros = False
    return table


@njit(nogil=True, cache=True)
def stream_bytes(symbols, bits):
    """A stream of symbols that take so many bits (sizes.stream_bytes)."""
    segments = -(-symbols // SEGMENT)
    whole, rest = symbols // SEGMENT, symbols % SEGMENT
    lanes = LANES * whole
    if rest:
        lanes += 1 if rest < SHORT else LANES
    size = bits / 8 + LANE_BYTES * lanes
    directory = segments * _number_size(size / max(segments, 1))
    return max(size + directory, np.ceil(symbols / EXPANSION))
