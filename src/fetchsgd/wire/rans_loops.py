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
BAD_STATE, BAD_END = 1, 2
_MASK = np.uint32((1 << 14) - 1)
_14 = np.uint32(14)
_1, _2, _3 = np.uint64(1), np.uint64(2), np.uint64(3)
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
    """Decode one symbol; `table` holds frequency and start in one number.

    Places are unsigned: for a signed one numba asks each time whether it counts from the end.
    """
    slot = x & _MASK
    symbol = lookup[slot]
    out[i] = symbol
    packed = table[symbol]
    x = np.uint32((packed >> _16) * (x >> _14) + slot - (packed & _LOW16))
    low = x < LOWEST
    refilled = np.uint32((x << _16) | np.uint32(words[at]))
    return (refilled if low else x), at + np.uint64(low)


@njit(nogil=True, cache=True)
def _pop_round(x, out, i, words, at, lookup, table):
    """Decode one symbol of each lane."""
    x0, at = _pop(x[0], out, i, words, at, lookup, table)
    x1, at = _pop(x[1], out, i + _1, words, at, lookup, table)
    x2, at = _pop(x[2], out, i + _2, words, at, lookup, table)
    x3, at = _pop(x[3], out, i + _3, words, at, lookup, table)
    return (x0, x1, x2, x3), at


@njit(nogil=True, cache=True)
def _pop_rest(out, first, words, at, states, lookup, table):
    """Decode from symbol `first` on, one after another."""
    available = np.uint64(words.size - LANES)
    for i in range(first, out.size):
        if at > available:
            return -1
        lane = i % states.size
        states[lane], at = _pop(states[lane], out, np.uint64(i), words, at, lookup, table)
    return np.int64(at)


@njit(nogil=True, cache=True)
def pop_symbols(out, words, states, lookup, table):
    """Decode into `out`; return the number of words used, or -1 where there were too few.

    `words` ends with 4 places more than there are words, so that one check a round is enough.
    """
    at, available = np.uint64(0), np.uint64(words.size - LANES)
    whole = out.size - out.size % LANES if states.size == LANES else 0
    if whole:
        x = (states[0], states[1], states[2], states[3])
        for i in range(np.uint64(0), np.uint64(whole), np.uint64(LANES)):
            if at > available:
                return -1
            x, at = _pop_round(x, out, i, words, at, lookup, table)
        states[0], states[1], states[2], states[3] = x
    return _pop_rest(out, whole, words, at, states, lookup, table)


@njit(nogil=True, cache=True)
def pop_two(out_a, out_b, words_a, words_b, states_a, states_b, lookup, table):
    """`pop_symbols` of two segments of four lanes, the same number of symbols in both.

    A lane waits for its own last symbol most of the time; eight lanes fill that time.
    """
    at_a, at_b = np.uint64(0), np.uint64(0)
    most_a, most_b = np.uint64(words_a.size - LANES), np.uint64(words_b.size - LANES)
    whole = out_a.size - out_a.size % LANES
    a = (states_a[0], states_a[1], states_a[2], states_a[3])
    b = (states_b[0], states_b[1], states_b[2], states_b[3])
    for i in range(np.uint64(0), np.uint64(whole), np.uint64(LANES)):
        if at_a > most_a or at_b > most_b:
            return -1, -1
        a, at_a = _pop_round(a, out_a, i, words_a, at_a, lookup, table)
        b, at_b = _pop_round(b, out_b, i, words_b, at_b, lookup, table)
    states_a[0], states_a[1], states_a[2], states_a[3] = a
    states_b[0], states_b[1], states_b[2], states_b[3] = b
    used_a = _pop_rest(out_a, whole, words_a, at_a, states_a, lookup, table)
    return used_a, _pop_rest(out_b, whole, words_b, at_b, states_b, lookup, table)


@njit(nogil=True, cache=True)
def _open(words, starts, i, lanes):
    """The words of segment i, with as many behind them as may be looked at, and its states."""
    head = 2 * lanes
    states = np.empty(lanes, np.uint32)
    for lane in range(lanes):
        low, high = words[starts[i] + 2 * lane], words[starts[i] + 2 * lane + 1]
        states[lane] = np.uint32(low) | np.uint32(np.uint32(high) << _16)
    return words[starts[i] + head : starts[i + 1] + LANES], states


@njit(nogil=True, cache=True)
def _ends_well(used, words, states):
    return used == words.size - LANES and (states == LOWEST).all()


@njit(nogil=True, cache=True)
def pop_segments(out, words, starts, size, short, first, last, lookup, table):
    """Segments [first, last) of a stream, two at once where both are whole; what is wrong, or 0.

    Each has `size` symbols, but the last of the stream, and one lane if it has fewer than `short`.
    What lies behind a segment is never part of it: whoever uses it has used too many words.
    """
    i = first
    while i < last:
        here = out[i * size : (i + 1) * size]
        words_a, states_a = _open(words, starts, i, LANES if here.size >= short else 1)
        if (states_a < LOWEST).any():
            return BAD_STATE
        there = out[(i + 1) * size : (i + 2) * size]
        if i + 1 == last or there.size != here.size or here.size < short:
            used = pop_symbols(here, words_a, states_a, lookup, table)
            if not _ends_well(used, words_a, states_a):
                return BAD_END
            i += 1
            continue
        words_b, states_b = _open(words, starts, i + 1, LANES)
        if (states_b < LOWEST).any():
            return BAD_STATE
        used, more = pop_two(here, there, words_a, words_b, states_a, states_b, lookup, table)
        if not (_ends_well(used, words_a, states_a) and _ends_well(more, words_b, states_b)):
            return BAD_END
        i += 2
    return 0


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


@njit(nogil=True, cache=True)
def list_frequencies(data, found, total):
    """Read a table as rans.read_table does: bytes used, or -1 where it is not an honest one."""
    at, place, left, after_zeros = 0, 0, total, False
    while left > 0:
        if at + 3 > data.size or place >= found.size:
            return -1
        first, second = np.int64(data[at]), np.int64(data[at + 1])
        if first == 0:
            if after_zeros:
                return -1
            place += 1 + second
            at += 2
            after_zeros = True
            continue
        frequency, size = first, 1
        if first > 127:
            frequency, size = first - 128 + (second << 7), 2
            if second > 127:
                frequency, size = frequency - (128 << 7) + (np.int64(data[at + 2]) << 14), 3
            if data[at + size - 1] == 0:
                return -1
        if frequency > left:
            return -1
        found[place] = frequency
        left -= frequency
        place += 1
        at += size
        after_zeros = False
    return at
