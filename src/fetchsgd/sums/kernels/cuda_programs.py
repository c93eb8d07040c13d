"""The Triton program of the rotation: butterflies of up to 64 rows of the matrix.

Each thread holds the same columns of all rows in its registers, so nothing moves between threads,
and every load and store is of neighbouring columns.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _flipped(values, signs, at, inside):
    """Numbers, negated where the bit of their cell is set. Zeros behind the end are negated too."""
    word = tl.load(signs + (at >> 5), mask=inside, other=0)
    flips = ((word >> (at & 31).to(tl.int32)) & 1) << 31
    return (values.to(tl.int32, bitcast=True) ^ flips).to(tl.float32, bitcast=True)


@triton.jit
def _step(values, HALF: tl.constexpr, ROWS: tl.constexpr):
    """The butterflies of rows that are HALF apart."""
    moved = ()
    for i in tl.static_range(ROWS):
        if i & HALF:
            moved = moved + (values[i - HALF] - values[i],)
        else:
            moved = moved + (values[i] + values[i + HALF],)
    return moved


@triton.jit
def rotate_rows(
    out, rows, signs, read, written, blocks, tiles, groups, stride, scale,
    ROWS: tl.constexpr, LOG_ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    FLIP_BEFORE: tl.constexpr, FLIP_AFTER: tl.constexpr,
):  # fmt: skip
    """One group of rows that are `stride` apart, for some columns of one client's matrix.

    read, written: numbers of a client, in `rows` and in `out`; what is not read is zero.
    """
    tile = tl.program_id(0) % tiles
    group = tl.program_id(0) // tiles % groups
    client = (tl.program_id(0) // (tiles * groups)).to(tl.int64)
    first = (group // stride * stride * ROWS + group % stride).to(tl.int64)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < blocks
    rows += client * read
    out += client * written
    values = ()
    for i in tl.static_range(ROWS):
        at = (first + i * stride) * blocks + column
        value = tl.load(rows + at, mask=inside & (at < read), other=0.0)
        if FLIP_BEFORE:
            value = _flipped(value, signs, at, inside)
        values = values + (value,)
    for level in tl.static_range(LOG_ROWS):
        values = _step(values, 1 << level, ROWS)
    for i in tl.static_range(ROWS):
        at = (first + i * stride) * blocks + column
        value = values[i] * scale
        if FLIP_AFTER:
            value = _flipped(value, signs, at, inside)
        tl.store(out + at, value, mask=inside & (at < written))
