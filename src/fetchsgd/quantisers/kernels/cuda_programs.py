"""The Triton programs of quantisation. Only whole numbers are added atomically: equal bits always.

A program holds some runs as four slices of shape (RUNS, 64), slice w with cells g + 64 w: the four
words of a counter and the cells of a symbol then lie at the same place of different slices, and
nothing moves between threads but the maximum of a run.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def philox(a, b, c, d, key_a, key_b):
    """Philox4x32-10; counter and key are uint32."""
    for _ in tl.static_range(10):
        low_a, low_c = a * 0xD2511F53, c * 0xCD9E8D57
        high_a, high_c = tl.umulhi(a, 0xD2511F53), tl.umulhi(c, 0xCD9E8D57)
        a, b = high_c ^ b ^ key_a, low_c
        c, d = high_a ^ d ^ key_b, low_a
        key_a, key_b = key_a + 0x9E3779B9, key_b + 0xBB67AE85
    return a, b, c, d


@triton.jit
def _size(cells):
    """The bits of |cell|, as int32."""
    return cells.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def random_words(run, stream, key_low, key_high, cells):
    """The words of some runs, a slice each."""
    # Zero, but by way of a slice of the cells: words are then made in the threads that hold them.
    zero = (_size(cells) < 0).to(tl.uint32)
    return philox(
        zero + tl.arange(0, 64)[None, :].to(tl.uint32),
        zero + run[:, None].to(tl.uint32),
        zero + (stream & 0xFFFFFFFF).to(tl.uint32),
        zero + ((stream >> 32) & 0xFFFFFFFF).to(tl.uint32),
        zero + key_low.to(tl.uint32),
        zero + key_high.to(tl.uint32),
    )


@triton.jit
def _cut_to_bfloat16(size, extra):
    """Bits of a magnitude, moved up by `extra` and cut to bfloat16; none turns into infinity."""
    # Kept below infinity first, since the sum must not reach 2^31.
    finite = tl.minimum((tl.minimum(size, 0x7F7FFFFF) + extra) & -65536, 0x7F7F0000)
    other = tl.where(size > 0x7F800000, 0x7FC00000, 0x7F800000)
    return tl.where(size < 0x7F800000, finite, other)


@triton.jit
def _stored(cells, factor, words, usable, TOP: tl.constexpr):
    """What is stored for each cell: its level + TOP."""
    # A run without a usable scale may hold NaN, which has no place.
    place = tl.where(usable, cells, 0.0) * factor * 16777216.0
    place = tl.minimum(tl.maximum(place, -TOP * 16777216.0), TOP * 16777216.0)
    # The sum wraps around in 32 bits and is not negative.
    moved = place.to(tl.int32).to(tl.uint32, bitcast=True) + (words >> 8) + (TOP << 24)
    return moved >> 24


# Otherwise Triton would compile another program for a key of 1.
@triton.jit(do_not_specialize=["key_low", "key_high"])
def quantise_runs(
    symbols, scales, cells, streams, key_low, key_high, count, runs, tiles,
    BITS: tl.constexpr, PER_SYMBOL: tl.constexpr, TOP: tl.constexpr, RUNS: tl.constexpr,
):  # fmt: skip
    """Scales and symbols of a tile of runs of one row."""
    row = (tl.program_id(0) // tiles).to(tl.int64)
    run = (tl.program_id(0) % tiles) * RUNS + tl.arange(0, RUNS)
    at = run.to(tl.int64)[:, None] * 256 + tl.arange(0, 64)[None, :]
    source = cells + row * count + at
    cells_0 = tl.load(source, mask=at < count, other=0.0)
    cells_1 = tl.load(source + 64, mask=at + 64 < count, other=0.0)
    cells_2 = tl.load(source + 128, mask=at + 128 < count, other=0.0)
    cells_3 = tl.load(source + 192, mask=at + 192 < count, other=0.0)

    size = tl.maximum(
        tl.maximum(_size(cells_0), _size(cells_1)), tl.maximum(_size(cells_2), _size(cells_3))
    )
    scale_bits = _cut_to_bfloat16(tl.max(size, axis=1), 65535)
    scale_bits = tl.where(scale_bits < 0x0D800000, 0, scale_bits)
    scale = scale_bits.to(tl.float32, bitcast=True)
    inside = run < runs
    tl.store(scales + row * runs + run, scale, mask=inside)

    usable = (scale_bits > 0) & (scale_bits < 0x7F800000)
    # The usual division of Triton is not correctly rounded, and would differ from other devices.
    top = tl.full((RUNS,), TOP, tl.float32)
    factor = tl.div_rn(top, tl.where(usable, scale, 1.0))[:, None]
    usable = usable[:, None]
    stream = tl.load(streams + row)
    word_0, word_1, word_2, word_3 = random_words(run, stream, key_low, key_high, cells_0)
    stored_0 = _stored(cells_0, factor, word_0, usable, TOP)
    stored_1 = _stored(cells_1, factor, word_1, usable, TOP)
    stored_2 = _stored(cells_2, factor, word_2, usable, TOP)
    stored_3 = _stored(cells_3, factor, word_3, usable, TOP)

    stride: tl.constexpr = 256 // PER_SYMBOL
    place = (row * runs + run)[:, None] * stride + tl.arange(0, 64)[None, :]
    target = symbols + place
    keep = inside[:, None]
    if PER_SYMBOL == 4:
        low = stored_0 | (stored_1 << BITS)
        high = (stored_2 << (2 * BITS)) | (stored_3 << (3 * BITS))
        tl.store(target, (low | high).to(tl.uint8), mask=keep)
    elif PER_SYMBOL == 2:
        tl.store(target, (stored_0 | (stored_2 << BITS)).to(tl.uint8), mask=keep)
        tl.store(target + 64, (stored_1 | (stored_3 << BITS)).to(tl.uint8), mask=keep)
    else:
        tl.store(target, stored_0.to(tl.uint8), mask=keep)
        tl.store(target + 64, stored_1.to(tl.uint8), mask=keep)
        tl.store(target + 128, stored_2.to(tl.uint8), mask=keep)
        tl.store(target + 192, stored_3.to(tl.uint8), mask=keep)


@triton.jit
def sum_runs(
    total, symbols, scales, weights, n, count, runs,
    BITS: tl.constexpr, PER_SYMBOL: tl.constexpr, TOP: tl.constexpr,
    RUNS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """One symbol slice of a tile of runs, added up over all rows in order."""
    stride: tl.constexpr = 256 // PER_SYMBOL
    slices: tl.constexpr = stride // 64
    slice_of = tl.program_id(0) % slices
    run = (tl.program_id(0) // slices).to(tl.int64) * RUNS + tl.arange(0, RUNS)
    within = slice_of * 64 + tl.arange(0, 64)[None, :]
    inside = run < runs
    place = run  # among the runs of all rows
    sums = ()
    for _ in tl.static_range(PER_SYMBOL):
        sums = sums + (tl.zeros((RUNS, 64), tl.float32),)
    for first in range(0, n, AT_ONCE):
        # Several rows are on their way from memory at once.
        loaded = ()
        steps = ()
        for i in tl.static_range(AT_ONCE):
            keep = inside & (first + i < n)
            here = place + i * runs
            at = here[:, None] * stride + within
            loaded = loaded + (tl.load(symbols + at, mask=keep[:, None], other=TOP),)
            scale = tl.load(scales + here, mask=keep, other=0.0)
            weight = tl.load(weights + first + i, mask=first + i < n, other=0.0)
            step = weight * tl.div_rn(scale, tl.full((RUNS,), TOP, tl.float32))
            steps = steps + (step,)
        for i in tl.static_range(AT_ONCE):
            sums = _add_levels(sums, loaded[i].to(tl.int32), steps[i], BITS, PER_SYMBOL, TOP)
        place += AT_ONCE * runs
    target = total + run[:, None] * 256 + within
    for part in tl.static_range(PER_SYMBOL):
        cell = run[:, None] * 256 + within + part * stride
        tl.store(target + part * stride, sums[part], mask=cell < count)


@triton.jit
def _add_levels(
    sums, symbols, step, BITS: tl.constexpr, PER_SYMBOL: tl.constexpr, TOP: tl.constexpr
):
    added = ()
    for part in tl.static_range(PER_SYMBOL):
        level = ((symbols >> (part * BITS)) & ((1 << BITS) - 1)) - TOP
        added = added + (sums[part] + step[:, None] * level.to(tl.float32),)
    return added


@triton.jit
def count_symbols(counts, symbols, length, parts, SPAN: tl.constexpr, SPANS: tl.constexpr):
    """Add the symbols of some spans of one row to its counts."""
    row = (tl.program_id(0) // parts).to(tl.int64)
    begin = (tl.program_id(0) % parts).to(tl.int64) * (SPAN * SPANS)
    bins = tl.arange(0, 256)
    seen = tl.zeros((256,), tl.int32)
    for span in range(SPANS):
        at = begin + span * SPAN + tl.arange(0, SPAN)
        symbol = tl.load(symbols + row * length + at, mask=at < length, other=0)
        seen += tl.histogram(symbol.to(tl.int32), 256)
    # Places past the end were counted as zeros.
    past = tl.maximum(begin + SPAN * SPANS - length, 0).to(tl.int32)
    seen = tl.where(bins == 0, seen - past, seen)
    tl.atomic_add(counts + row * 256 + bins, seen.to(tl.int64), mask=seen > 0)


@triton.jit(do_not_specialize=["key_low", "key_high"])
def round_runs(out, cells, streams, key_low, key_high, count, tiles, RUNS: tl.constexpr):
    """A tile of runs of one row, rounded to bfloat16."""
    row = (tl.program_id(0) // tiles).to(tl.int64)
    run = (tl.program_id(0) % tiles) * RUNS + tl.arange(0, RUNS)
    at = run.to(tl.int64)[:, None] * 256 + tl.arange(0, 64)[None, :]
    cells += row * count
    out += row * count
    loaded = ()
    for w in tl.static_range(4):
        cell = tl.load(cells + at + 64 * w, mask=at + 64 * w < count, other=0.0)
        loaded = loaded + (cell,)
    words = random_words(run, tl.load(streams + row), key_low, key_high, loaded[0])
    for w in tl.static_range(4):
        sign = loaded[w].to(tl.int32, bitcast=True) & -2147483648
        extra = (words[w] & 65535).to(tl.int32)
        moved = _cut_to_bfloat16(_size(loaded[w]), extra) | sign
        rounded = moved.to(tl.float32, bitcast=True)
        tl.store(out + at + 64 * w, rounded, mask=at + 64 * w < count)
