"""The Triton programs that walk over all estimates. Nothing is read but tables."""

# mypy: ignore-errors
# Compiled by Triton, which has no types and needs none.

from __future__ import annotations

import triton
import triton.language as tl

from fetchsgd.sketch.kernels.cuda_programs import (
    append,
    count_span,
    exchange,
    ranks_of_span,
    write_span,
)
from fetchsgd.sketch.kernels.permuted.hash_programs import RUN_TIME, column_of, negated, words
from fetchsgd.sketch.kernels.permuted.tile_programs import (
    flipped_at,
    in_place,
    sign_bits,
    sign_words,
)


@triton.jit
def _estimates(
    span, table, dim, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
    ROWS: tl.constexpr, NETWORK: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    """The estimates of a span, their places in it, how many there are, and the first coordinate.

    Estimates and places are (W, T, P); a place that is too large has no coordinate.
    """
    spans = tl.cdiv(width * (BLOCK // (W * P)), T)
    group = span // spans
    start = (span % spans) * (T * W * P)
    block = start // BLOCK + tl.arange(0, T)
    place = start % BLOCK
    # Blocks that are not there are read as the last one.
    t = tl.minimum(block, width - 1).to(tl.uint32)
    values = ()
    for row in tl.static_range(ROWS):
        first, second = words(first_group + row * groups + group, k0, k1)
        flip = first & flips.to(tl.uint32)
        column = column_of(t, first, second, width, low_bits, highs, turns, k2, k3)
        at = flipped_at(column, place, flip, BLOCK, W, P, VECTOR)
        row_of_table = table + tl.full((), row, tl.int64) * cols
        if VECTOR == 1:  # where there is a cell for each coordinate, the last block may be cut
            cells = tl.load(row_of_table + at, mask=at < cols, other=0.0)
        else:
            cells = tl.load(row_of_table + at)
        cells = in_place(cells, flip, 1, W, T, P, VECTOR)
        key = second ^ k3.to(tl.uint32, bitcast=True)
        drawn = sign_words(t, place, flip * 0, key, sign_mask, BLOCK, W, P, VECTOR)
        bits = sign_bits(drawn, flip * 0, W, P, VECTOR)
        values = values + (negated(cells, bits),)
    for step in tl.static_range(len(NETWORK)):
        values = exchange(values, NETWORK[step][0], NETWORK[step][1])
    if LOWER == UPPER:
        middle = values[LOWER]
    else:
        middle = 0.5 * values[LOWER] + 0.5 * values[UPPER]
    places = tl.arange(0, W)[:, None, None] * P + tl.arange(0, T)[:, None] * BLOCK
    places = places + tl.arange(0, P)
    base = group.to(tl.int64) * width * BLOCK + start
    there = tl.minimum(dim - base, width * BLOCK - start)
    return tl.reshape(middle, (W, T, P)), places, tl.maximum(there, 0).to(tl.int32), base


@triton.jit(do_not_specialize=[*RUN_TIME, "program", "begin", "end"])
def write_estimates(
    out, program, begin, end, table, dim, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
    ROWS: tl.constexpr, NETWORK: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """Those of coordinates [begin, end), in programs from number `program` on.

    They are ALIGNED if `begin` is a multiple of VECTOR.
    """
    values, places, there, base = _estimates(
        program + tl.program_id(0), table, dim, cols,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK, W, T, P, VECTOR, ROWS, NETWORK, LOWER, UPPER,
    )  # fmt: skip
    target = out + (base - begin)
    low = tl.maximum(begin - base, 0).to(tl.int32)
    high = tl.minimum(end - base, there).to(tl.int32)
    if ALIGNED & (low == 0) & (high >= T * W * P):
        # The compiler cannot know: spans begin at multiples of VECTOR.
        at = (base - begin) + places
        at = tl.max_contiguous(tl.multiple_of(at, [1, 1, VECTOR]), [1, 1, VECTOR])
        tl.store(out + at, values)
    else:
        tl.store(target + places, values, mask=(places >= low) & (places < high))


@triton.jit
def _in_order(given, SPAN: tl.constexpr):
    """Something that _estimates gives, along one axis, in order of coordinate."""
    return tl.reshape(tl.permute(given, (1, 0, 2)), (SPAN,))


@triton.jit(do_not_specialize=RUN_TIME)
def append_reached(
    indices, kept_values, count, capacity, threshold, table, dim, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
    ROWS: tl.constexpr, NETWORK: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    """Append what reaches the threshold, in any order."""
    values, places, there, base = _estimates(
        tl.program_id(0), table, dim, cols,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK, W, T, P, VECTOR, ROWS, NETWORK, LOWER, UPPER,
    )  # fmt: skip
    places, values = tl.reshape(places, (T * W * P,)), tl.reshape(values, (T * W * P,))
    append(
        indices, kept_values, count, capacity, tl.load(threshold), base + places, places < there,
        values,
    )  # fmt: skip


@triton.jit(do_not_specialize=RUN_TIME)
def count_reached(
    counts, threshold, spans, table, dim, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
    ROWS: tl.constexpr, NETWORK: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    """How many estimates of a span lie above the threshold, and how many on it."""
    tl.static_assert(T * W * P < 65536)
    span = tl.program_id(0)
    values, places, there, base = _estimates(
        span, table, dim, cols,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK, W, T, P, VECTOR, ROWS, NETWORK, LOWER, UPPER,
    )  # fmt: skip
    count_span(counts, span, spans, tl.load(threshold), places < there, values)


@triton.jit(do_not_specialize=RUN_TIME)
def write_reached(
    indices, kept_values, size, counts, ends, threshold, spans, table, dim, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
    ROWS: tl.constexpr, NETWORK: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    """Write what is above the threshold and the first ties, each to its rank in index order."""
    span = tl.program_id(0)
    needed, above_before, equal_before, room = ranks_of_span(counts, ends, span, spans, size)
    if needed:
        values, places, there, base = _estimates(
            span, table, dim, cols,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
            BLOCK, W, T, P, VECTOR, ROWS, NETWORK, LOWER, UPPER,
        )  # fmt: skip
        places, values = _in_order(places, T * W * P), _in_order(values, T * W * P)
        write_span(
            indices, kept_values, size, above_before, equal_before, room, tl.load(threshold),
            base + places, places < there, values,
        )  # fmt: skip
