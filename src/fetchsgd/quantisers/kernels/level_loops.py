"""Levels into a sum on a CPU, run by run, without a table of floats between them.

A reply of 8 bits is a quarter of its floats, and one of 2 bits a sixteenth: these would be written
to memory and read twice. Here a run of floats lives in the cache. Every number and every sum is
the one that floats would give, to the bit.
"""

from __future__ import annotations

import numpy as np
from numba import njit

RUN = 256


@njit(nogil=True, cache=True)
def _fill_run(out, symbols, step, bits):
    """The floats of one run: step * level."""
    top = np.int32((1 << (bits - 1)) - 1)
    mask = np.int32((1 << bits) - 1)
    stride = symbols.size
    for part in range(RUN // stride):
        target = out[part * stride : (part + 1) * stride]
        shift = np.int32(part * bits)
        for j in range(stride):
            stored = np.int32(symbols[j]) >> shift & mask
            target[j] = step * np.float32(np.int32(stored - top))


@njit(nogil=True, cache=True)
def fill_cells(out, symbols, scales, bits, per_symbol, first):
    """Cells from `first` on as floats, as many as there is room for."""
    top = np.float32((1 << (bits - 1)) - 1)
    stride = RUN // per_symbol
    some = np.empty(RUN, np.float32)
    at = 0
    while at < out.size:
        run, skipped = (first + at) // RUN, (first + at) % RUN
        source = symbols[run * stride : (run + 1) * stride]
        size = min(RUN - skipped, out.size - at)
        if size == RUN:
            _fill_run(out[at : at + RUN], source, scales[run] / top, bits)
        else:
            _fill_run(some, source, scales[run] / top, bits)
            out[at : at + size] = some[skipped : skipped + size]
        at += size


@njit(nogil=True, cache=True)
def add_cells(total, symbols, scales, bits, per_symbol, weight):
    """Doubles, and all cells times a weight."""
    top = np.float32((1 << (bits - 1)) - 1)
    stride = RUN // per_symbol
    some = np.empty(RUN, np.float32)
    for run in range(scales.size):
        source = symbols[run * stride : (run + 1) * stride]
        _fill_run(some, source, scales[run] / top, bits)
        target = total[run * RUN : (run + 1) * RUN]
        for i in range(target.size):
            target[i] += weight * np.float64(some[i])
