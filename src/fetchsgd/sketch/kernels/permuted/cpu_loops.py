"""The inner loops of the sketch by permutation on a CPU, compiled by numba and cached on disk.

They walk over a vector in order, a chunk of blocks at a time: first where all of them go, which the
compiler turns into vector instructions, then their values. `numbers` are those of the permutation,
as `numbers_of` in cpu.py lists them. They release the interpreter lock.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fetchsgd.sketch.kernels.permuted.cpu_lanes import add_flipped, prefetch

# Coordinates of a chunk that is estimated, or added, if blocks are not longer.
CHUNK, ADDED = 4096, 1 << 14
# How many blocks ahead cells are asked for, or coordinates where blocks are short.
AHEAD, AHEAD_ADDED = 8, (16, 512)
ONE_LANE = (0,)
# What cells are asked for: the length counts.
READS, WRITES = (), (0,)
WORD = np.uint32
GOLDEN, FIRST, SECOND = WORD(0x9E3779B1), WORD(0x85EBCA6B), WORD(0xC2B2AE35)


@njit(inline="always")
def _mix(x):
    x = WORD(WORD(x ^ (x >> WORD(16))) * FIRST)
    x = WORD(WORD(x ^ (x >> WORD(13))) * SECOND)
    return WORD(x ^ (x >> WORD(16)))


@njit(inline="always")
def _half_mix(x, key):
    z = WORD(WORD(x * GOLDEN) + key)
    return WORD(WORD(z ^ (z >> WORD(16))) * FIRST)


@njit(inline="always")
def _high(a, b):
    return WORD((np.uint64(a) * np.uint64(b)) >> np.uint64(32))


@njit(inline="always")
def _turn(x, by, size):
    """X + by modulo size, both below it: the sum less size wraps to a huge number if too small."""
    moved = WORD(x + by)
    return WORD(min(moved, WORD(moved - size)))


@njit(inline="always")
def words_of(numbers, group):
    """The two words of a group, from which all else follows."""
    first = _mix(WORD(WORD(group) + numbers[6]))
    return first, _mix(WORD(first + numbers[7]))


@njit(inline="always")
def _place(t, first, second, numbers):
    """The column of block t of a group."""
    width, low_bits, highs, turns = numbers[0], numbers[1], numbers[2], numbers[3]
    lows = WORD(WORD(1) << low_bits)
    a, b = WORD(first ^ numbers[8]), WORD(second ^ numbers[8])
    c = WORD(first ^ numbers[9])
    u = _turn(t, _high(first, turns), width)
    high, low = WORD(u >> low_bits), WORD(u & WORD(lows - WORD(1)))
    low = WORD(low ^ _high(_half_mix(high, a), lows))
    high = _turn(high, _high(_half_mix(low, b), highs), highs)
    low = WORD(low ^ _high(_half_mix(high, c), lows))
    moved = WORD(WORD(high << low_bits) | low)
    return _turn(moved if u < WORD(highs * lows) else u, _high(second, turns), width)


@njit(inline="always")
def block_at(column, first, second, numbers):
    """The block of a group that goes to a column: the same steps backwards."""
    width, low_bits, highs, turns = numbers[0], numbers[1], numbers[2], numbers[3]
    lows = WORD(WORD(1) << low_bits)
    a, b = WORD(first ^ numbers[8]), WORD(second ^ numbers[8])
    c = WORD(first ^ numbers[9])
    u = _turn(column, WORD(width - _high(second, turns)), width)
    high, low = WORD(u >> low_bits), WORD(u & WORD(lows - WORD(1)))
    low = WORD(low ^ _high(_half_mix(high, c), lows))
    high = _turn(high, WORD(highs - _high(_half_mix(low, b), highs)), highs)
    low = WORD(low ^ _high(_half_mix(high, a), lows))
    moved = WORD(WORD(high << low_bits) | low)
    u = moved if u < WORD(highs * lows) else u
    return _turn(u, WORD(width - _high(first, turns)), width)


@njit(nogil=True, cache=True)
def place_blocks(columns, t, first, second, numbers):
    """The columns of blocks t, t + 1, ... of a group."""
    numbers = numbers.copy()  # so that the compiler knows that columns are no part of them
    for n in range(columns.size):
        columns[n] = _place(WORD(t + n), first, second, numbers)


@njit(inline="always")
def _sign_word(run, second, numbers):
    return _mix(WORD(WORD(run * GOLDEN) + WORD(second ^ numbers[9]))) & numbers[5]


@njit(nogil=True, cache=True)
def draw_signs(words, run, second, numbers):
    """The words of signs of runs run, run + 1, ... of a group."""
    for n in range(words.size):
        words[n] = _sign_word(WORD(run + n), second, numbers)


@njit(nogil=True, cache=True)
def draw_sign(within, second, numbers):
    """The sign of a coordinate of a group: 1 is negative."""
    word = _sign_word(WORD(within // 32), second, numbers)
    return WORD((word >> WORD(within % 32)) & WORD(1))


@njit(nogil=True, cache=True)
def add_vector(out, vector, start, number, numbers, block, lanes, left, right):
    """Add a piece that starts at coordinate `start` to columns [left, right) of blocks of a row.

    `number` is that of the row's first group.
    """
    span = np.int64(numbers[0]) * block
    at = 0
    while at < vector.size:
        group = (start + at) // span
        within = (start + at) - group * span
        size = min(span - within, vector.size - at)
        _add_to_group(
            out, vector[at : at + size], within, number + group, numbers, block, lanes, left, right
        )
        at += size


@njit(nogil=True, cache=True)
def _add_to_group(out, vector, within, group, numbers, block, lanes, left, right):
    """Add coordinates from `within` on of one group."""
    head = min(-within % block, vector.size)
    if head > 0:  # a block that an earlier piece began
        _add_singly(out, vector[:head], within, group, numbers, block, left, right)
    first, second = words_of(numbers, group)
    flip = WORD(first & numbers[4])
    step = max(ADDED // block, 1)
    columns = np.empty(step, dtype=np.uint32)
    words = np.empty(step * block // 32 + 2, dtype=np.uint32)
    chosen = np.empty(step + 1, dtype=np.int64)
    whole = (vector.size - head) // block
    t = (within + head) // block
    for done in range(0, whole, step):
        count = min(step, whole - done)
        place_blocks(columns[:count], WORD(t + done), first, second, numbers)
        run = (t + done) * block // 32
        runs = ((t + done + count) * block + 31) // 32 - run
        draw_signs(words[:runs], WORD(run), second, numbers)
        part = vector[head + done * block : head + (done + count) * block]
        shift = (t + done) * block - run * 32
        if left == 0 and right == numbers[0]:
            _add_blocks(out, part, columns, words, shift, None, count, flip, block, lanes)
        else:
            kept = 0
            for n in range(count):
                chosen[kept] = n
                # Without a branch, which would be a coin toss and mispredicted half the time.
                kept += (columns[n] >= left) & (columns[n] < right)
            _add_blocks(out, part, columns, words, shift, chosen, kept, flip, block, lanes)
    rest = head + whole * block
    if rest < vector.size:
        _add_singly(out, vector[rest:], within + rest, group, numbers, block, left, right)


@njit(nogil=True, cache=True)
def _add_blocks(out, vector, columns, words, shift, chosen, kept, flip, block, lanes):
    """Add `kept` blocks of a chunk, the chosen ones or all if `chosen` is None.

    The first coordinate of the chunk has bit `shift` of the words of signs.
    """
    around = np.uint64(flip & WORD(~np.uint32(len(lanes) - 1)))
    distance = max(AHEAD_ADDED[0], AHEAD_ADDED[1] // block)
    for m in range(kept):
        n = np.uint64(m if chosen is None else chosen[m])
        # Rows are longer than the nearest cache.
        ahead = min(m + distance, kept - 1)
        ahead = np.uint64(ahead if chosen is None else chosen[ahead])
        prefetch(out, np.uint64(columns[ahead]) * np.uint64(block), WRITES)
        source, target = n * np.uint64(block), np.uint64(columns[n]) * np.uint64(block)
        for i in range(0, block, len(lanes)):
            bit = np.uint64(shift) + source + np.uint64(i)
            bits = WORD(words[bit >> np.uint64(5)] >> WORD(bit & np.uint64(31)))
            add_flipped(
                out, target + (np.uint64(i) ^ around), vector, source + np.uint64(i), flip, bits,
                lanes,
            )  # fmt: skip


@njit(nogil=True, cache=True)
def _add_singly(out, part, within, group, numbers, block, left, right):
    """Add a part of a block."""
    for n in range(part.size):
        column, place, bits = locate_one(within + n, group, numbers, block)
        if left <= column < right:
            add_flipped(out, column * block + place, part, n, WORD(0), bits, ONE_LANE)


@njit(nogil=True, cache=True)
def locate_one(within, group, numbers, block):
    """Column, place in it, and sign of a coordinate of a group."""
    first, second = words_of(numbers, group)
    column = _place(WORD(within // block), first, second, numbers)
    place = np.int64(within % block) ^ np.int64(first & numbers[4])
    return np.int64(column), place, draw_sign(within, second, numbers)


@njit(nogil=True, cache=True)
def add_entries(out, indices, values, number, numbers, block):
    """Add single coordinates to a row."""
    span = np.int64(numbers[0]) * block
    for n in range(indices.size):
        group = indices[n] // span
        column, place, bits = locate_one(indices[n] - group * span, number + group, numbers, block)
        add_flipped(out, column * block + place, values, n, WORD(0), bits, ONE_LANE)


@njit(nogil=True, cache=True)
def mark_entries(marks, indices, values, number, numbers, block):
    """Set the cells of a row that hold a coordinate whose value is not zero."""
    span = np.int64(numbers[0]) * block
    for n in range(indices.size):
        if values[n] != 0:
            group = indices[n] // span
            column, place, _ = locate_one(indices[n] - group * span, number + group, numbers, block)
            marks[column * block + place] = True
