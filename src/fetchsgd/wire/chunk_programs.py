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
    levels, stride, count, chunks, values, larger, length, pages,
    TILE: tl.constexpr, PAGE: tl.constexpr, DIRECT: tl.constexpr,
):  # fmt: skip
    """Nonzeros of each of TILE chunks of a row, and the symbols among them.

    The magnitudes of values without symbols of their own are added to `larger`.
    """
    row, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    first = tile.to(tl.int64) * (TILE * 64)
    at = first + tl.arange(0, TILE)[:, None] * 64 + tl.arange(0, 64)[None, :]
    level = tl.load(levels + row * stride + at, mask=at < count, other=0).to(tl.int32)
    z = ((level << 1) ^ (level >> 31)).to(tl.uint32, bitcast=True)
    # One sum for both: few tiles have anything large, and the others skip what that takes.
    is_large = z >= DIRECT
    found = tl.sum((z != 0).to(tl.int32) + (is_large.to(tl.int32) << 16), axis=1)
    chunk = tile * TILE + tl.arange(0, TILE)
    tl.store(chunks + row * length + chunk, (found & 0xFFFF).to(tl.uint8), chunk < length)
    into = values + (row * pages + tile * TILE // PAGE) * 256
    usual = (z != 0) & (z < DIRECT)
    tl.atomic_add(into + z.to(tl.int32), 1, mask=usual, sem="relaxed")
    if tl.max(found, axis=0) >= 65536:
        tl.atomic_add(into + level_symbol(level), 1, mask=is_large, sem="relaxed")
        size = ((z.to(tl.int64) + 1) >> 1) * is_large
        tl.atomic_add(larger + row, tl.sum(size), sem="relaxed")


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
            tl.atomic_add(into + key, 1, mask=inside & (key > 0), sem="relaxed")
        tl.atomic_add(into, nothing, sem="relaxed")
