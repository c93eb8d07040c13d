"""Counting over chunks on a GPU, compiled by Triton. Only integers are added, so bits are equal."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def level_symbol(value):
    """The symbol of an int32, as in chunk_loops.py; the exponent is read off the float."""
    z = ((value << 1) ^ (value >> 31)).to(tl.uint32, bitcast=True)
    # A float holds 24 bits; more must be cut, or they round up to the next power of two.
    head = tl.where(z < 16777216, z, (z >> 8) << 8)
    exponent = (head.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    exponent = tl.maximum(exponent, 6)
    below = (z >> (exponent - 1).to(tl.uint32)) & 1
    return tl.where(z < 64, z.to(tl.int32), 52 + 2 * exponent + below.to(tl.int32))


@triton.jit
def count_chunks(
    levels, stride, count, chunks, values, length, pages, TILE: tl.constexpr, PAGE: tl.constexpr
):
    """Nonzeros of each of TILE chunks of a row, and the symbols among them."""
    row = tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(0) * TILE + tl.arange(0, TILE)
    at = chunk[:, None].to(tl.int64) * 64 + tl.arange(0, 64)[None, :]
    level = tl.load(levels + row * stride + at, mask=at < count, other=0).to(tl.int32)
    filled = (level != 0).to(tl.int32)
    tl.store(chunks + row * length + chunk, tl.sum(filled, axis=1).to(tl.uint8), chunk < length)
    # Most nonzeros are 1 or -1. To add those up first spares most additions to one place.
    ones = tl.sum((level == 1).to(tl.int32))
    less = tl.sum((level == -1).to(tl.int32))
    page = tl.program_id(0) * TILE // PAGE
    into = values + (row * pages + page) * 256
    tl.atomic_add(into + 2, ones, mask=ones > 0)
    tl.atomic_add(into + 1, less, mask=less > 0)
    larger = (level > 1) | (level < -1)
    if tl.max(larger.to(tl.int32)) > 0:
        tl.atomic_add(into + level_symbol(level), 1, mask=larger)


@triton.jit
def chunk_class(near):
    """The bit length, at most 8."""
    found = (near > 0).to(tl.int32)
    for power in tl.static_range(1, 8):
        found += (near >= (1 << power)).to(tl.int32)
    return found


@triton.jit
def _shifted(chunks, at, first, last, back: tl.constexpr):
    return tl.load(chunks + at - back, mask=(at >= first + back) & (at < last), other=0)


@triton.jit
def count_classes(
    chunks, length, counts, nonzeros, spans,
    SPAN: tl.constexpr, TILE: tl.constexpr, COUNTS: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """One segment of a row: its nonzeros and, if there are some, its chunks by class."""
    span, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    chunks += row * length
    first = span * SPAN
    last = tl.minimum(first + SPAN, length)
    whole = first + tl.arange(0, SPAN)
    total = tl.sum(tl.load(chunks + whole, mask=whole < last, other=0).to(tl.int32))
    tl.store(nonzeros + row * spans + span, total)
    if total > 0:
        into = counts + row * CLASSES * COUNTS
        nothing = 0
        for start in range(first, last, TILE):
            at = start + tl.arange(0, TILE)
            inside = at < last
            n = tl.load(chunks + at, mask=inside, other=0).to(tl.int32)
            near = _shifted(chunks, at, first, last, 1).to(tl.int32)
            near += _shifted(chunks, at, first, last, 2).to(tl.int32)
            near += _shifted(chunks, at, first, last, 3).to(tl.int32)
            near += _shifted(chunks, at, first, last, 4).to(tl.int32)
            key = chunk_class(near) * COUNTS + n
            # Zeros after zeros are the most frequent by far where levels are sparse.
            nothing += tl.sum((inside & (key == 0)).to(tl.int32))
            tl.atomic_add(into + key, 1, mask=inside & (key > 0))
        tl.atomic_add(into, nothing)
