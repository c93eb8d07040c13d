"""Loops over bit streams and bucket symbols, compiled by numba and cached on disk.

A bit stream is an array of 64-bit words, lowest bit first, with two words more than it needs, so
that any 64 bits of it can be looked at. Loops that read data from outside check where they go.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_16 = np.uint64(16)
_63 = np.uint64(63)


@njit(nogil=True, cache=True)
def _peek(words, at):
    """64 bits from bit `at` on."""
    word, within = at >> 6, np.uint64(at & 63)
    return (words[word] >> within) | (words[word + 1] << _1 << (_63 - within))


@njit(nogil=True, cache=True)
def _poke(words, at, value):
    """Set bits that are still zero, from bit `at` on."""
    word, within = at >> 6, np.uint64(at & 63)
    words[word] |= value << within
    words[word + 1] |= value >> _1 >> (_63 - within)


@njit(nogil=True, cache=True)
def _zigzag(value):
    """0, -1, 1, -2, 2, ... as 0, 1, 2, 3, 4, ..."""
    return np.uint64(value << 1) ^ np.uint64(value >> 63)


@njit(nogil=True, cache=True)
def _top_bit(z):
    """The place of the highest bit set in z > 0."""
    place = 0
    for step in (32, 16, 8, 4, 2, 1):
        if z >> np.uint64(step):
            z >>= np.uint64(step)
            place += step
    return place


@njit(nogil=True, cache=True)
def bucket(value):
    """The symbol of an integer of 64 bits, and how many extra bits it has."""
    z = _zigzag(value)
    if z < _16:
        return np.int64(z), 0
    top = _top_bit(z)
    return 4 * top + np.int64((z >> np.uint64(top - 2)) & _3), top - 2


@njit(nogil=True, cache=True)
def bucket_symbols(values, out):
    """The symbol of each integer; return how many extra bits all of them have."""
    extra = 0
    for i in range(values.size):
        out[i], more = bucket(values[i])
        extra += more
    return extra


@njit(nogil=True, cache=True)
def write_extra(values, words):
    """The bits of each integer that its symbol leaves open."""
    at = 0
    for i in range(values.size):
        z = _zigzag(values[i])
        if z >= _16:
            size = _top_bit(z) - 2
            _poke(words, at, z & ((_1 << np.uint64(size)) - _1))
            at += size


@njit(nogil=True, cache=True)
def _integer(symbol, bits):
    """The integer of a symbol and, from 16 on, its extra bits."""
    z = np.uint64(symbol)
    if symbol >= 16:
        size = np.uint64((symbol >> 2) - 2)
        z = ((np.uint64(4) | (z & _3)) << size) | (bits & ((_1 << size) - _1))
    return np.int64(z >> _1) ^ -np.int64(z & _1)


@njit(nogil=True, cache=True)
def read_integers(symbols, words, available, out):
    """Fill `out`; return the bits used, or -1 where there are too few."""
    at = 0
    for i in range(symbols.size):
        symbol = np.int64(symbols[i])
        bits = np.uint64(0)
        if symbol >= 16:
            size = (symbol >> 2) - 2
            if at + size > available:
                return -1
            bits = _peek(words, at)
            at += size
        out[i] = _integer(symbol, bits)
    return at


@njit(nogil=True, cache=True)
def place_symbols(out, indices, symbols, first):
    """Write symbols to their places in a stretch of zeros that starts at coordinate `first`."""
    out[:] = 0
    for i in range(indices.size):
        out[indices[i] - first] = symbols[i]


@njit(nogil=True, cache=True)
def list_nonzero(symbols, first, indices, kept):
    """Coordinates and symbols of what is not zero; `indices` has just the right size."""
    n = 0
    for i in range(symbols.size):
        if symbols[i] != 0:
            indices[n] = first + i
            kept[n] = symbols[i]
            n += 1


@njit(nogil=True, cache=True)
def count_escapes(indices, base, end, step):
    """How many whole steps lie between neighbours, from `base` on and, if end > 0, up to `end`."""
    total = 0
    at = base
    for i in range(indices.size):
        gap = indices[i] - at
        if gap >= step:
            total += gap // step
        at = indices[i] + 1
    if end > at:
        total += (end - at) // step
    return total


@njit(nogil=True, cache=True)
def write_gaps(indices, base, shift, escape, symbols, words):
    """Symbols of gaps and their low bits; what is left of `symbols` are escapes up to the end."""
    step = escape << shift
    mask = (1 << shift) - 1
    n = 0
    bit = 0
    at = base
    for i in range(indices.size):
        gap = indices[i] - at
        while gap >= step:
            symbols[n] = escape
            n += 1
            gap -= step
        symbols[n] = gap >> shift
        n += 1
        if shift:
            _poke(words, bit, np.uint64(gap & mask))
            bit += shift
        at = indices[i] + 1
    symbols[n:] = escape


@njit(nogil=True, cache=True)
def read_gaps(symbols, words, base, dim, shift, escape, out):
    """Fill `out`; return the first coordinate after what is described, or -1 for bad data.

    `words` has `shift` bits for each place of `out`, so only the number of indices needs a check.
    """
    step = escape << shift
    mask = np.uint64((1 << shift) - 1)
    n = 0
    bit = 0
    at = base
    for i in range(symbols.size):
        symbol = np.int64(symbols[i])
        if symbol == escape:
            at += step
            if at > dim:
                return -1
        else:
            if n == out.size:
                return -1
            at += (symbol << shift) + np.int64(_peek(words, bit) & mask)
            bit += shift
            if at >= dim:
                return -1
            out[n] = at
            n += 1
            at += 1
    return at if n == out.size else -1
