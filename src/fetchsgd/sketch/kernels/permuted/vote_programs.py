"""Triton programs that find the few coordinates which may be large, from one bit for each cell.

A median reaches a threshold only if at least half of the rows do. So a bit for each cell says
whether its magnitude does, and rows vote on the 32 coordinates of a word at once: that takes a
32nd of the memory traffic of estimates and a fraction of their arithmetic. What has enough votes
is listed, and estimated by itself.
"""

# mypy: ignore-errors
# Compiled by Triton, which has no types and needs none.

from __future__ import annotations

import triton
import triton.language as tl

from fetchsgd.sketch.kernels.cuda_programs import append
from fetchsgd.sketch.kernels.permuted.entry_programs import entry_medians
from fetchsgd.sketch.kernels.permuted.hash_programs import RUN_TIME, column_of, words


@triton.jit(do_not_specialize=["cols", "row_words", "capacity"])
def mark_cells(
    bits, counts, capacity, threshold, table, cols, row_words, WORDS: tl.constexpr
):  # fmt: skip
    """One bit for each cell: whether its magnitude reaches the threshold.

    Where half of two numbers is rounded, their mean may be larger than both: below 1e-37 all cells
    are marked. If there is a NaN, which a median may pass over, too much is said to be found.
    """
    row = tl.program_id(1).to(tl.int64)
    word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    cell = word[:, None] * 32 + tl.arange(0, 32)[None, :]
    magnitude = tl.abs(tl.load(table + row * cols + cell, mask=cell < cols, other=0.0))
    level = tl.load(threshold)
    level = tl.where(level < 1e-37, 0.0, level)
    marked = (magnitude >= level).to(tl.uint32)
    drawn = tl.sum(marked << tl.arange(0, 32).to(tl.uint32)[None, :], axis=1)
    tl.store(bits + row * row_words + word, drawn.to(tl.int32, bitcast=True), mask=word < row_words)
    if tl.sum((magnitude != magnitude).to(tl.int32)) > 0:
        tl.atomic_add(counts + 1, capacity + 1)


@triton.jit
def _flipped(word, flip, STEP: tl.constexpr, EVEN: tl.constexpr):
    """Bits change places with those that are STEP away, if the flip says so."""
    moved = ((word & EVEN) << STEP) | ((word >> STEP) & EVEN)
    return tl.where((flip & STEP) != 0, moved, word)


@triton.jit
def _votes_of_row(
    bits, block, unit, group,
    width, low_bits, highs, turns, flips, k0, k1, k2, k3, BLOCK: tl.constexpr,
):  # fmt: skip
    """The bits of these units of blocks in a row, in order of coordinate."""
    first, second = words(group, k0, k1)
    flip = first & flips.to(tl.uint32)
    column = column_of(block, first, second, width, low_bits, highs, turns, k2, k3)
    if BLOCK >= 32:
        at = column * (BLOCK // 32) + (unit ^ (flip >> 5))
        word = tl.load(bits + at).to(tl.uint32, bitcast=True)
    else:
        cell = column * BLOCK
        word = tl.load(bits + (cell >> 5)).to(tl.uint32, bitcast=True) >> (cell & 31)
        word = word & ((1 << BLOCK) - 1)
    if BLOCK >= 2:
        word = _flipped(word, flip, 1, 0x55555555)
    if BLOCK >= 4:
        word = _flipped(word, flip, 2, 0x33333333)
    if BLOCK >= 8:
        word = _flipped(word, flip, 4, 0x0F0F0F0F)
    if BLOCK >= 16:
        word = _flipped(word, flip, 8, 0x00FF00FF)
    if BLOCK >= 32:
        word = _flipped(word, flip, 16, 0x0000FFFF)
    return word


@triton.jit
def _with_vote(counted, vote):
    """Entry i says who has more than i votes."""
    more = (counted[0] | vote,)
    for i in tl.static_range(1, len(counted)):
        more = more + (counted[i] | (counted[i - 1] & vote),)
    return more


@triton.jit(do_not_specialize=[*RUN_TIME, "room", "row_words", "dim"])
def list_voted(
    listed, counts, room, bits, row_words, dim,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, SIZE: tl.constexpr, EACH: tl.constexpr, UNITS: tl.constexpr,
    ROWS: tl.constexpr, NEEDED: tl.constexpr,
):  # fmt: skip
    """List the coordinates that enough rows vote for, in any order.

    A unit is a block, or as much of it as a word has bits for: of that SIZE, with EACH to a block.
    """
    spans = tl.cdiv(width * EACH, UNITS)
    group = tl.program_id(0) // spans
    unit = (tl.program_id(0) % spans) * UNITS + tl.arange(0, UNITS)
    there = unit < width * EACH
    block = tl.minimum(unit // EACH, width - 1).to(tl.uint32)
    none = tl.zeros((UNITS,), tl.uint32)
    counted = (none,)
    for _ in tl.static_range(1, NEEDED):
        counted = counted + (none,)
    for row in tl.static_range(ROWS):
        vote = _votes_of_row(
            bits + tl.full((), row, tl.int64) * row_words, block, (unit % EACH).to(tl.uint32),
            first_group + row * groups + group,
            width, low_bits, highs, turns, flips, k0, k1, k2, k3, BLOCK,
        )  # fmt: skip
        counted = _with_vote(counted, vote)
    voted = tl.where(there, counted[NEEDED - 1], 0)
    first = group.to(tl.int64) * width * BLOCK
    # The lowest bit of each word in turn.
    while tl.max((voted != 0).to(tl.int32)) > 0:
        lowest = voted & (none - voted)
        place = (lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
        at = first + (unit * SIZE + place)
        taken = (voted != 0) & (at < dim)
        ones = taken.to(tl.int32)
        to = tl.atomic_add(counts, tl.sum(ones).to(tl.int64)) + tl.cumsum(ones, 0) - 1
        tl.store(listed + to, at, mask=taken & (to < room))
        voted = voted & (voted - 1)


@triton.jit(do_not_specialize=[*RUN_TIME, "room", "capacity", "cols"])
def append_listed(
    indices, kept_values, counts, capacity, threshold, listed, room, table, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, SPAN: tl.constexpr,
    ROWS: tl.constexpr, NETWORK: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    """Append those that are listed and reach the threshold, in any order."""
    count = tl.minimum(tl.load(counts), room)
    start = tl.program_id(0) * SPAN
    if start < count:
        at = start + tl.arange(0, SPAN)
        coordinate = tl.load(listed + at, mask=at < count, other=0)
        values = entry_medians(
            coordinate, table, cols,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
            BLOCK, ROWS, NETWORK, LOWER, UPPER,
        )  # fmt: skip
        append(
            indices, kept_values, counts + 1, capacity, tl.load(threshold), coordinate, at < count,
            values,
        )  # fmt: skip
