"""The inner loops of the entropy coder, compiled by numba and cached on disk.

A state x lies in [2^16, 2^32). To code a symbol of frequency f (of 2^14) and start c takes x to
`(x div f) 2^14 + x mod f + c`; where that would leave the range, the low 16 bits go out as a word
first. Decoding undoes this in the opposite order. Symbol i belongs to lane i mod 4 (or to the only
lane of a short segment); lanes are independent, so a processor works on four at once, and all share
one run of words. Words are picked by arithmetic, not by branches, which would be unpredictable.
"""

from __future__ import annotations

import numpy as np
from numba import njit

LANES = 4
LOWEST = np.uint32(1 << 16)
_MASK = np.uint32((1 << 14) - 1)
_14 = np.uint32(14)
_16 = np.uint32(16)
_LOW16 = np.uint32(0xFFFF)
_WORD = np.uint64(16)
_ROOM = np.uint64(18)
_SCALE = np.uint64(46)
_TOTAL = np.uint64(1 << 14)


@njit(nogil=True, cache=True)
def _push(x, symbol, words, at, frequency, start, reciprocal):
    """Code one symbol; words grow downwards from `at`."""
    f = frequency[symbol]
    full = x >= (f << _ROOM)
    words[at] = np.uint16(x)
    at -= np.int64(full)
    x = (x >> _WORD) if full else x
    # Exact for all x < 2^18 f, where reciprocal = ceil(2^46 / f), and never above 2^64.
    quotient = (x * reciprocal[symbol]) >> _SCALE
    return x + quotient * (_TOTAL - f) + start[symbol], at


@njit(nogil=True, cache=True)
def push_symbols(symbols, words, states, frequency, start, reciprocal):
    """Code symbols last to first; return the place below the last word written.

    `words` needs one place more than there are symbols.
    """
    at = np.int64(words.size - 1)
    lanes = states.size
    whole = symbols.size - symbols.size % LANES if lanes == LANES else 0
    for i in range(symbols.size - 1, whole - 1, -1):
        lane = i % lanes
        states[lane], at = _push(states[lane], symbols[i], words, at, frequency, start, reciprocal)
    if whole == 0:
        return at
    x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
    for i in range(whole - LANES, -1, -LANES):
        x3, at = _push(x3, symbols[i + 3], words, at, frequency, start, reciprocal)
        x2, at = _push(x2, symbols[i + 2], words, at, frequency, start, reciprocal)
        x1, at = _push(x1, symbols[i + 1], words, at, frequency, start, reciprocal)
        x0, at = _push(x0, symbols[i], words, at, frequency, start, reciprocal)
    states[0], states[1], states[2], states[3] = x0, x1, x2, x3
    return at


@njit(nogil=True, cache=True)
def _pop(x, out, i, words, at, lookup, table):
    """Decode one symbol; `table` holds frequency and start in one number."""
    slot = x & _MASK
    symbol = lookup[slot]
    out[i] = symbol
    packed = table[symbol]
    x = np.uint32((packed >> _16) * (x >> _14) + slot - (packed & _LOW16))
    low = x < LOWEST
    refilled = np.uint32((x << _16) | np.uint32(words[at]))
    return (refilled if low else x), at + np.int64(low)


@njit(nogil=True, cache=True)
def pop_symbols(out, words, states, lookup, table):
    """Decode into `out`; return the number of words used, or -1 where there were too few.

    `words` ends with 4 places more than there are words, so that one check a round is enough.
    """
    at = np.int64(0)
    available = words.size - LANES
    lanes = states.size
    whole = out.size - out.size % LANES if lanes == LANES else 0
    if whole:
        x0, x1, x2, x3 = states[0], states[1], states[2], states[3]
        for i in range(0, whole, LANES):
            if at > available:
                return -1
            x0, at = _pop(x0, out, i, words, at, lookup, table)
            x1, at = _pop(x1, out, i + 1, words, at, lookup, table)
            x2, at = _pop(x2, out, i + 2, words, at, lookup, table)
            x3, at = _pop(x3, out, i + 3, words, at, lookup, table)
        states[0], states[1], states[2], states[3] = x0, x1, x2, x3
    for i in range(whole, out.size):
        if at > available:
            return -1
        lane = i % lanes
        states[lane], at = _pop(states[lane], out, i, words, at, lookup, table)
    return at


@njit(nogil=True, cache=True)
def count_symbols(symbols):
    """How often each of 256 symbols occurs."""
    # Four tables in turn: an equal neighbour need not wait for the count before it.
    counts = np.zeros((4, 256), np.int64)
    whole = symbols.size - symbols.size % 4
    for i in range(0, whole, 4):
        counts[0, symbols[i]] += 1
        counts[1, symbols[i + 1]] += 1
        counts[2, symbols[i + 2]] += 1
        counts[3, symbols[i + 3]] += 1
    for i in range(whole, symbols.size):
        counts[0, symbols[i]] += 1
    return counts.sum(axis=0)
