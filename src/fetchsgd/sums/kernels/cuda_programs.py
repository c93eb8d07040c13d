"""The Triton programs of the rotation: its signs, and all butterflies of some columns in one pass.

A program holds all rows of some columns. A thread begins with one column of 64 neighbouring rows,
does their butterflies in its registers, hands 63 of its numbers to other threads, gets as many
from rows that are 64 apart, and does the rest. Memory is read once and written once.

Triton knows no registers, only tensors. What one thread shall hold is a tuple of tensors, one for
each row; a tensor with rows in front is loaded so that a thread has all rows of its column, and is
taken apart and put together again in halves, which moves nothing. Single loads for each row
would say the same, and take minutes to compile. Sixteen rows at a time leave enough registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fetchsgd.quantisers.kernels.cuda_programs import random_words


# Otherwise Triton would compile another program for a key of 1.
@triton.jit(do_not_specialize=["stream", "key_low", "key_high"])
def fill_words(words, stream, key_low, key_high, count, RUNS: tl.constexpr):
    """The random words of some runs of a stream."""
    run = tl.program_id(0) * RUNS + tl.arange(0, RUNS)
    at = run[:, None] * 256 + tl.arange(0, 64)[None, :]
    zeros = tl.zeros((RUNS, 64), tl.float32)
    found = random_words(run, stream.to(tl.int64), key_low, key_high, zeros)
    for w in tl.static_range(4):
        word = found[w].to(tl.int32, bitcast=True)
        tl.store(words + at + 64 * w, word, mask=at + 64 * w < count)


@triton.jit
def _flipped(values, signs, at, inside):
    """Numbers, negated where the bit of their cell is set. Zeros behind the end are negated too."""
    word = tl.load(signs + (at >> 5), mask=inside, other=0)
    flips = ((word >> (at & 31).to(tl.int32)) & 1) << 31
    return (values.to(tl.int32, bitcast=True) ^ flips).to(tl.float32, bitcast=True)


@triton.jit
def _taken_apart(whole, LOG_ROWS: tl.constexpr):
    """A tensor for each row; rows are the last axes, two long each."""
    values = (whole,)
    for level in tl.static_range(LOG_ROWS):
        even, odd = (), ()
        for i in tl.static_range(1 << level):
            a, b = tl.split(values[i])
            even += (a,)
            odd += (b,)
        values = even + odd
    return values


@triton.jit
def _together(values, FIRST: tl.constexpr, LOG_ROWS: tl.constexpr):
    """One tensor of some of the rows, which are its last axes."""
    some = ()
    for i in tl.static_range(1 << LOG_ROWS):
        some += (values[FIRST + i],)
    for level in tl.static_range(LOG_ROWS - 1, -1, -1):
        joined = ()
        for i in tl.static_range(1 << level):
            joined += (tl.join(some[i], some[i + (1 << level)]),)
        some = joined
    return some[0]


@triton.jit
def _butterflies(values, LOG_ROWS: tl.constexpr):
    """Of neighbouring rows first, then of rows that are 2, 4, 8, ... apart."""
    for level in tl.static_range(LOG_ROWS):
        moved = ()
        for i in tl.static_range(1 << LOG_ROWS):
            if i & (1 << level):
                moved += (values[i - (1 << level)] - values[i],)
            else:
                moved += (values[i] + values[i + (1 << level)],)
        values = moved
    return values


@triton.jit
def rotate_tile(
    out, rows, signs, count, cells, blocks, tiles, scale,
    NEAR: tl.constexpr, LOG_NEAR: tl.constexpr, LOG_IN: tl.constexpr,
    FAR: tl.constexpr, LOG_FAR: tl.constexpr, LOG_OUT: tl.constexpr,
    COLUMNS: tl.constexpr, BACK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Some columns of one client's matrix of FAR groups of NEAR rows.

    count, cells: numbers of a client, without and with what fills them up. BACK: from cells to
    numbers, with signs behind the butterflies. LOG_IN, LOG_OUT: 2^these rows are loaded and stored
    at once. WIDE: whether places need 64 bits.
    """
    tile = tl.program_id(0) % tiles
    client = (tl.program_id(0) // tiles).to(tl.int64)
    rows += client * (cells if BACK else count)
    out += client * (count if BACK else cells)
    column = (tile * COLUMNS + tl.arange(0, COLUMNS))[None, None, :]
    inside = column < blocks
    if WIDE:
        blocks = blocks.to(tl.int64)

    values = ()
    groups = NEAR * tl.arange(0, FAR)[None, :, None]
    for first in tl.static_range(0, NEAR, 1 << LOG_IN):
        at = (tl.arange(0, 1 << LOG_IN)[:, None, None] + groups + first) * blocks + column
        there = inside if BACK else inside & (at < count)
        some = tl.load(rows + at, mask=there, other=0.0)
        if not BACK:
            some = _flipped(some, signs, at, inside)
        some = tl.reshape(tl.permute(some, (1, 2, 0)), (FAR, COLUMNS) + (2,) * LOG_IN)
        values += _taken_apart(some, LOG_IN)
    values = _butterflies(values, LOG_NEAR)

    whole = tl.reshape(_together(values, 0, LOG_NEAR), (FAR, COLUMNS, NEAR))
    # Here numbers go from thread to thread.
    whole = tl.reshape(tl.permute(whole, (2, 1, 0)), (NEAR, COLUMNS) + (2,) * LOG_FAR)
    values = _butterflies(_taken_apart(whole, LOG_FAR), LOG_FAR)

    near = tl.arange(0, NEAR)[None, :, None]
    for first in tl.static_range(0, FAR, 1 << LOG_OUT):
        some = tl.reshape(_together(values, first, LOG_OUT), (NEAR, COLUMNS, 1 << LOG_OUT))
        some = tl.permute(some, (2, 0, 1)) * scale
        at = (near + (tl.arange(0, 1 << LOG_OUT)[:, None, None] + first) * NEAR) * blocks + column
        if BACK:
            some = _flipped(some, signs, at, inside)
        tl.store(out + at, some, mask=inside & (at < count) if BACK else inside)
