"""The Triton programs of one step per message: sums of squares, rounding, and sums of levels.

Only whole numbers are added where threads decide the order, so bits are always equal.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fetchsgd.quantisers.kernels.cuda_programs import random_words


@triton.jit
def add_squares(sums, sizes, cells, count, chunks, CHUNK: tl.constexpr):
    """The squares of one chunk of one row, and the bits of its largest magnitude."""
    row = (tl.program_id(0) // chunks).to(tl.int64)
    at = (tl.program_id(0) % chunks).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    loaded = tl.load(cells + row * count + at, mask=at < count, other=0.0)
    magnitude = loaded.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    size = tl.max(magnitude, axis=0)
    exponent = magnitude >> 23
    whole = (magnitude & 0x7FFFFF) | tl.where(exponent > 0, 0x800000, 0)
    shift = tl.minimum(tl.maximum(size >> 23, 1) - tl.maximum(exponent, 1), 31)
    cut = (whole >> shift).to(tl.int64)
    tl.store(sums + tl.program_id(0), tl.sum(cut * cut, axis=0))
    tl.store(sizes + tl.program_id(0), size)


@triton.jit
def _level(cells, factor, words, usable, LIMIT: tl.constexpr):
    place = tl.where(usable, cells, 0.0) * factor * 16777216.0
    place = tl.minimum(tl.maximum(place, -LIMIT), LIMIT)
    # Whole numbers from here on: a product and a sum of floats may be fused.
    return (place.to(tl.int64) + (words >> 8).to(tl.int64)) >> 24


# Otherwise Triton would compile another program for a key of 1.
@triton.jit(do_not_specialize=["key_low", "key_high"])
def round_places(
    levels, cells, steps, streams, key_low, key_high, count, tiles,
    LIMIT: tl.constexpr, RUNS: tl.constexpr,
):  # fmt: skip
    """The levels of a tile of runs of one row."""
    row = (tl.program_id(0) // tiles).to(tl.int64)
    run = (tl.program_id(0) % tiles) * RUNS + tl.arange(0, RUNS)
    at = run.to(tl.int64)[:, None] * 256 + tl.arange(0, 64)[None, :]
    cells += row * count
    levels += row * count
    loaded = ()
    for w in tl.static_range(4):
        cell = tl.load(cells + at + 64 * w, mask=at + 64 * w < count, other=0.0)
        loaded = loaded + (cell,)
    step = tl.load(steps + row)
    usable = (step > 0.0) & (step < float("inf"))
    # The usual division of Triton is not correctly rounded, and would differ from other devices.
    factor = tl.div_rn(1.0, tl.where(usable, step, 1.0))
    words = random_words(run, tl.load(streams + row), key_low, key_high, loaded[0])
    for w in tl.static_range(4):
        level = _level(loaded[w], factor, words[w], usable, LIMIT)
        where = levels + at + 64 * w
        tl.store(where, level.to(levels.dtype.element_ty), mask=at + 64 * w < count)


@triton.jit
def sum_levels(
    total, levels, steps, n, count, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr
):  # fmt: skip
    """Some columns, added up over all rows in order, each level times its row's step."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    source = levels + at
    added = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n, AT_ONCE):
        # Several rows are on their way from memory at once.
        loaded = ()
        for i in tl.static_range(AT_ONCE):
            keep = inside & (first + i < n)
            loaded = loaded + (tl.load(source, mask=keep, other=0),)
            source += count
        for i in tl.static_range(AT_ONCE):
            step = tl.load(steps + first + i, mask=first + i < n, other=0.0)
            added += step * loaded[i].to(tl.float32)
    tl.store(total + at, added, mask=inside)
