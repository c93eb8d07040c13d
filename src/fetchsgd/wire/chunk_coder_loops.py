"""Chunks through the entropy coder and back, compiled by numba and cached on disk.

Everything in a segment goes through one state of the entropy coder, in the order in which it is
read. A writer goes forward once, to find the frequency and start of each symbol, and then backward
to code them. Loops that read data from outside check where they go.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.wire.bit_loops import _top_bit, _zigzag
from fetchsgd.wire.chunk_loops import (
    CHUNK,
    DIRECT,
    PAGE,
    chunk_class,
    extra_bits,
    level_of,
    level_symbol,
)

DIGIT = 14
# A number up to this many is one symbol; of a larger one the ten highest bits are.
WHOLE = 4096
HEAD_BITS = 10
# A chunk has one count, five digits of a rank, and 64 values of at most six symbols.
MOST_SYMBOLS = 1 + 5 + 64 * 6
TOO_SHORT, TOO_MANY, BAD_RANK, BEYOND = -1, -2, -3, -4

_LOWEST = np.uint32(1 << 16)
_MASK = np.uint32((1 << 14) - 1)


@njit(nogil=True, cache=True)
def count_digits(values):
    """How many digits the extra bits of all values have."""
    total = 0
    for i in range(values.size):
        total += (level_symbol(values[i])[1] + DIGIT - 1) // DIGIT
    return total


@njit(nogil=True, cache=True)
def _put_uniform(entries, n, value, size):
    """One of `size` equally likely symbols."""
    start = (value << DIGIT) // size
    entries[n] = ((((value + 1) << DIGIT) // size - start) << 16) | start
    return n + 1


@njit(nogil=True, cache=True)
def _put_bits(entries, n, value, bits):
    """The lowest `bits` of value, as digits of at most 14 bits."""
    while bits > 0:
        size = min(bits, DIGIT)
        n = _put_uniform(entries, n, np.int64(value & np.uint64((1 << size) - 1)), 1 << size)
        value >>= np.uint64(size)
        bits -= size
    return n


@njit(nogil=True, cache=True)
def head_shift(size):
    """Low bits of a number below `size` that are not part of its first symbol."""
    return 0 if size <= WHOLE else _top_bit(np.uint64(size - 1)) + 1 - HEAD_BITS


@njit(nogil=True, cache=True)
def _put_rank(entries, n, rank, size):
    """A number below `size`."""
    shift = head_shift(size)
    n = _put_uniform(entries, n, rank >> shift, ((size - 1) >> shift) + 1)
    return _put_bits(entries, n, np.uint64(rank), shift)


@njit(nogil=True, cache=True)
def list_symbols(
    indices, values, first, counts, group, pages, count_codes, value_codes, choose, entries
):
    """Frequency and start, in one number, of each symbol of a segment; return how many."""
    n, k = 0, 0
    a, b, c, d = 0, 0, 0, 0
    for j in range(counts.size):
        size = np.int64(counts[j])
        entries[n] = count_codes[group[chunk_class(a + b + c + d)], size]
        n += 1
        a, b, c, d = size, a, b, c
        if size == 0:
            continue
        rank = np.int64(0)
        for i in range(size):
            rank += choose[i + 1, (indices[k + i] - first) & (CHUNK - 1)]
        if size < CHUNK:
            n = _put_rank(entries, n, rank, choose[size, CHUNK])
        codes = value_codes[pages[j // PAGE]]
        for i in range(k, k + size):
            symbol, extra = level_symbol(values[i])
            entries[n] = codes[symbol]
            n += 1
            if extra:
                n = _put_bits(entries, n, _zigzag(values[i]), extra)
        k += size
    return n


@njit(nogil=True, cache=True)
def push_all(entries, words):
    """Code symbols last to first; return the state, and the place below the last word written."""
    x = _LOWEST
    at = np.int64(words.size - 1)
    for i in range(entries.size - 1, -1, -1):
        f = np.uint32(entries[i] >> np.uint32(16))
        start = np.uint32(entries[i] & np.uint32(0xFFFF))
        if np.uint64(x) >= np.uint64(f) << np.uint64(18):
            words[at] = np.uint16(x & np.uint32(0xFFFF))
            at -= 1
            x = np.uint32(x >> np.uint32(16))
        quotient = np.uint32(x // f)
        x = np.uint32((quotient << np.uint32(14)) + (x - quotient * f) + start)
    return x, at


@njit(nogil=True, cache=True)
def _next(x, f, start, words, at):
    """The state after a symbol, and where the next word is."""
    x = np.uint32(f * (x >> np.uint32(14)) + (x & _MASK) - start)
    if x < _LOWEST:
        return np.uint32((x << np.uint32(16)) | np.uint32(words[at])), at + 1
    return x, at


@njit(nogil=True, cache=True)
def _take(x, words, at, lookup, codes):
    """A symbol of a table."""
    symbol = lookup[x & _MASK]
    code = codes[symbol]
    x, at = _next(x, code >> np.uint32(16), code & np.uint32(0xFFFF), words, at)
    return np.int64(symbol), x, at


@njit(nogil=True, cache=True)
def _take_uniform(x, words, at, size):
    value = ((np.int64(x & _MASK) + 1) * size - 1) >> DIGIT
    start = (value << DIGIT) // size
    f = (((value + 1) << DIGIT) // size) - start
    x, at = _next(x, np.uint32(f), np.uint32(start), words, at)
    return value, x, at


@njit(nogil=True, cache=True)
def _take_bits(x, words, at, bits):
    value = np.uint64(0)
    done = 0
    while done < bits:
        size = min(bits - done, DIGIT)
        # Of 2^size equal symbols: the highest bits of the slot.
        slot = x & _MASK
        spare = np.uint32(DIGIT - size)
        digit = np.uint32(slot >> spare)
        value |= np.uint64(digit) << np.uint64(done)
        f = np.uint32(np.uint32(1) << spare)
        x, at = _next(x, f, np.uint32(digit << spare), words, at)
        done += size
    return value, x, at


@njit(nogil=True, cache=True)
def _place(rank, size, base, choose, out):
    """The set of `size` places of 64 with this rank, highest first."""
    above = CHUNK
    for i in range(size, 1, -1):
        low = i - 1
        high = above
        while high - low > 1:
            middle = (low + high) >> 1
            if choose[i, middle] <= rank:
                low = middle
            else:
                high = middle
        rank -= choose[i, low]
        out[i - 1] = base + low
        above = low
    out[0] = base + rank


@njit(nogil=True, cache=True)
def read_chunks(
    x, words, first, end, chunks, group, pages, count_lookup, count_codes, value_lookup,
    value_codes, choose, indices, values,
):  # fmt: skip
    """Fill `indices` and `values`; return the state and the words used, or what is wrong.

    `words` ends with MOST_SYMBOLS places more than there are words: one check a chunk is enough.
    """
    at = np.int64(0)
    available = words.size - MOST_SYMBOLS
    k = 0
    a, b, c, d = 0, 0, 0, 0
    for j in range(chunks):
        if at > available:
            return x, TOO_SHORT
        g = group[chunk_class(a + b + c + d)]
        size, x, at = _take(x, words, at, count_lookup[g], count_codes[g])
        a, b, c, d = size, a, b, c
        if size == 0:
            continue
        if k + size > indices.size:
            return x, TOO_MANY
        rank = np.int64(0)
        if size < CHUNK:
            sets = choose[size, CHUNK]
            shift = head_shift(sets)
            head, x, at = _take_uniform(x, words, at, ((sets - 1) >> shift) + 1)
            low, x, at = _take_bits(x, words, at, shift)
            rank = (head << shift) | np.int64(low)
            if rank >= sets:
                return x, BAD_RANK
        _place(rank, size, first + j * CHUNK, choose, indices[k : k + size])
        page = pages[j // PAGE]
        lookup, codes = value_lookup[page], value_codes[page]
        for i in range(k, k + size):
            symbol, x, at = _take(x, words, at, lookup, codes)
            bits = np.uint64(0)
            if symbol >= DIRECT:
                bits, x, at = _take_bits(x, words, at, extra_bits(symbol))
            values[i] = level_of(symbol, bits)
        k += size
    if k < indices.size:
        return x, TOO_MANY
    if indices[k - 1] >= end:
        return x, BEYOND
    return x, at
