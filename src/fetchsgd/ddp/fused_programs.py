"""The Triton programs of the fused hook: four launches from a bucket's gradients to their mean.

    balance     gradients of all tensors side by side, divided by their scales; sums of squares
    fill        cells of the table, rounded to levels, side by side in numbers that can be summed
    describe    what travels beside the table
    read        after the all-reduce: from cells to gradients, and what is kept for the next step

A bucket is cut into chunks, each of one tensor. A chunk is listed as its tensor, or -1 if that is
never compressed; where it begins in the bucket; where in the vector that is sketched, or beside the
table; and its length. Nothing is added atomically: the same bits every time. Keys and the step of
levels are read from memory, so that launches do not differ from step to step.
"""

# mypy: ignore-errors
# Compiled by Triton, which has no types and needs none.

from __future__ import annotations

import triton
import triton.language as tl

from fetchsgd.quantisers.kernels.cuda_programs import philox
from fetchsgd.sketch.kernels.permuted.entry_programs import entries
from fetchsgd.sketch.kernels.permuted.gather_programs import of_group
from fetchsgd.sketch.kernels.permuted.hash_programs import RUN_TIME, negated

SIZES = [name for name in RUN_TIME if name not in ("k0", "k1", "k2", "k3")]


@triton.jit
def _is_finite(x):
    return (x.to(tl.int32, bitcast=True) & 0x7FFFFFFF) < 0x7F800000


@triton.jit
def _scale(size, tensor, tensors, half_balance, TENSORS: tl.constexpr):
    """Of one tensor, as balance.scales has it."""
    at = tl.arange(0, TENSORS)
    sizes = tl.load(size + at, mask=at < tensors, other=0.0)
    least = tl.min(tl.where(sizes > 0.0, sizes, float("inf")), axis=0)
    least = tl.where(least < float("inf"), least, 1.0)
    own = tl.load(size + tensor)
    return tl.exp2(tl.log2(tl.where(own > 0.0, own, least)) * half_balance)


@triton.jit
def balance(
    vector, squares, scales, chunks, bucket, errors, size, tensors, half_balance,
    TENSORS: tl.constexpr, BALANCED: tl.constexpr, FEEDBACK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One chunk of the vector that is sketched, and the sum of its squares before it is divided."""
    entry = chunks + tl.program_id(0) * 4
    tensor = tl.load(entry)
    source, target, length = tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    at = tl.arange(0, CHUNK)
    inside = at < length
    values = tl.load(bucket + source + at, mask=inside, other=0.0).to(tl.float32)
    if FEEDBACK:
        values += tl.load(errors + target + at, mask=inside, other=0.0)
    tl.store(squares + tl.program_id(0), tl.sum(values * values, axis=0))
    if BALANCED:
        scale = _scale(size, tensor, tensors, half_balance, TENSORS)
        tl.store(scales + tensor, scale)  # every chunk of a tensor stores the same
        values = values / scale
    tl.store(vector + target + at, values, mask=inside)


@triton.jit
def _step(steps, tensors, TENSORS: tl.constexpr):
    """The step of levels: the largest that a tensor of the bucket has had."""
    at = tl.arange(0, TENSORS)
    return tl.max(tl.load(steps + at, mask=at < tensors, other=0.0), axis=0)


@triton.jit
def _fields(cells, at, cols, step, key_low, key_high, rank, MOST: tl.constexpr):
    """Levels above the lowest one, rounded at random; 0 beyond the last cell."""
    limit = MOST * step
    cells = tl.where(_is_finite(cells), cells, 0.0)
    cells = tl.minimum(tl.maximum(cells, -limit), limit)
    zero = at.to(tl.uint32) * 0
    # A counter has the words of four cells, 64 apart, as in quantisers/.
    a, b, c, d = philox(
        (at & 63).to(tl.uint32),
        (at >> 8).to(tl.uint32),
        zero + rank.to(tl.uint32),
        zero,
        zero + key_low.to(tl.uint32, bitcast=True),
        zero + key_high.to(tl.uint32, bitcast=True),
    )
    quarter = (at >> 6) & 3
    word = tl.where(quarter < 2, tl.where(quarter == 0, a, b), tl.where(quarter == 2, c, d))
    usable = (step > 0.0) & (step < float("inf"))
    factor = tl.div_rn(1.0, tl.where(usable, step, 1.0))
    place = tl.where(usable, cells, 0.0) * factor * 16777216.0
    # Whole numbers from here on: a product and a sum of floats may be fused.
    level = ((place.to(tl.int64) + (word >> 8).to(tl.int64)) >> 24).to(tl.int32)
    level = tl.minimum(tl.maximum(level, -MOST), MOST) + MOST
    return tl.where(at < cols, level, 0)


@triton.jit(do_not_specialize=[*SIZES, "rank"])
def fill(
    table, own, partial, vector, keys, steps, tensors, tiles, rank, world, dim, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups,
    BITS: tl.constexpr, MOST: tl.constexpr, TENSORS: tl.constexpr, FEEDBACK: tl.constexpr,
    BLOCK: tl.constexpr, T: tl.constexpr, W: tl.constexpr, P: tl.constexpr,
    VECTOR: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """A tile of cells: the sums of `permuted.gather_programs.gather`, made ready to be sent."""
    start = tl.program_id(0) * (T * W * P)
    k0, k1, k2, k3 = tl.load(keys), tl.load(keys + 1), tl.load(keys + 2), tl.load(keys + 3)
    # Columns that are not there are read as the last one.
    column = tl.minimum(start // BLOCK + tl.arange(0, T), width - 1).to(tl.uint32)
    place = start % BLOCK
    span = width.to(tl.int64) * BLOCK
    earlier = tl.zeros((1, W, T, P), tl.float32)
    for group in tl.range(0, groups // 2, loop_unroll_factor=UNROLL):
        earlier += of_group(
            vector + group * span, 0, 0, 0, group, 0, column, place,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
            False, BLOCK, 1, W, T, P, VECTOR,
        )  # fmt: skip
    later = tl.zeros((1, W, T, P), tl.float32)
    for group in tl.range(groups // 2, groups - 1, loop_unroll_factor=UNROLL):
        later += of_group(
            vector + group * span, 0, 0, 0, group, 0, column, place,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
            False, BLOCK, 1, W, T, P, VECTOR,
        )  # fmt: skip
    last = groups - 1
    later += of_group(
        vector + last * span, 0, 0, (dim - last * span).to(tl.int32), last, 0,
        column, place,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        True, BLOCK, 1, W, T, P, VECTOR,
    )  # fmt: skip
    tile: tl.constexpr = T * W * P
    at = start + tl.arange(0, tile)
    sums = tl.reshape(tl.permute(earlier + later, (0, 2, 1, 3)), (tile,))
    cells = tl.div_rn(sums, tl.zeros((tile,), tl.float32) + world)
    cells = tl.where(at < tl.minimum(cols, width * BLOCK), cells, 0.0)
    tl.store(partial + tl.program_id(0), tl.sum(cells * cells, axis=0))
    if MOST == 0:
        tl.store(table + at, cells.to(table.dtype.element_ty), mask=at < cols)
        if FEEDBACK:
            tl.store(own + at, cells.to(own.dtype.element_ty), mask=at < cols)
    else:
        step = _step(steps, tensors, TENSORS)
        clipped = tl.sum((tl.abs(cells) > MOST * step).to(tl.float32), axis=0)
        tl.store(partial + tiles + tl.program_id(0), clipped)
        fields = _fields(cells, at, cols, step, tl.load(keys + 4), tl.load(keys + 5), rank, MOST)
        if BITS == 8:
            packed, there, many = fields, at, cols
        else:
            low, high = tl.split(tl.reshape(fields, (tile // 2, 2)))
            packed = low | (high << BITS)
            there, many = start // 2 + tl.arange(0, tile // 2), (cols + 1) // 2
        tl.store(table + there, packed.to(table.dtype.element_ty), mask=there < many)
        if FEEDBACK:
            tl.store(own + there, packed.to(own.dtype.element_ty), mask=there < many)


@triton.jit
def _total(numbers, count, SPAN: tl.constexpr):
    """Of some numbers, in a fixed order."""
    added = tl.zeros((SPAN,), tl.float32)
    for first in range(0, count, SPAN):
        at = first + tl.arange(0, SPAN)
        added += tl.load(numbers + at, mask=at < count, other=0.0)
    return tl.sum(added, axis=0)


@triton.jit(do_not_specialize=["about"])
def describe(
    beside, used, squares, first_chunks, counts, partial, steps, chunks, bucket,
    tensors, exact, about, tiles, world, cols,
    BALANCED: tl.constexpr, MOST: tl.constexpr, TENSORS: tl.constexpr,
    CHUNK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Mean squares of tensors; what is never compressed; and of the table two numbers.

    used: the step of levels, for `read`, since what is kept changes while that runs.
    exact: how many chunks are never compressed; they come last.
    """
    kind = beside.dtype.element_ty
    program = tl.program_id(0)
    if program == 0:
        squared = _total(partial, tiles, SPAN) / cols / world
        clipped = tl.full((), 0.0, tl.float32)
        if MOST > 0:
            clipped = _total(partial + tiles, tiles, SPAN) / cols / world
            tl.store(used, _step(steps, tensors, TENSORS))
        tl.store(beside + about, clipped.to(kind))
        tl.store(beside + about + 1, squared.to(kind))
    elif program <= exact:
        entry = chunks + (program - 1) * 4
        source, target, length = tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
        at = tl.arange(0, CHUNK)
        values = tl.load(bucket + source + at, mask=at < length, other=0.0).to(tl.float32)
        tl.store(beside + target + at, (values / world).to(kind), mask=at < length)
    elif BALANCED:
        tensor = program - 1 - exact
        first = tl.load(first_chunks + tensor)
        found = _total(squares + first, tl.load(first_chunks + tensor + 1) - first, SPAN)
        tl.store(beside + tensor, (found / tl.load(counts + tensor) / world).to(kind))


@triton.jit
def _levels_at(packed, cell, inside, BITS: tl.constexpr):
    """The fields of some cells."""
    if BITS == 8:
        return tl.load(packed + cell, mask=inside, other=0).to(tl.int32)
    words = tl.load(packed + (cell >> 1), mask=inside, other=0).to(tl.int32)
    return (words >> ((cell & 1) * BITS)) & ((1 << BITS) - 1)


@triton.jit
def _next_step(step, clipped, squared, MOST: tl.constexpr, RULE: tl.constexpr):
    """As levels.next_step has it, with its numbers."""
    unit = tl.sqrt(squared) / MOST
    moved = step * tl.where(clipped > RULE[0], RULE[2], RULE[3])
    moved = tl.minimum(tl.maximum(moved, RULE[4] * unit), RULE[5] * unit)
    return tl.where(step > 0.0, moved, RULE[1] * unit)


@triton.jit(do_not_specialize=[*SIZES, "about"])
def read(
    bucket, errors, size, steps, chunks, listed, table, own, beside, vector, scales, used, keys,
    tensors, about, gain, said, share, rate,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups,
    BITS: tl.constexpr, MOST: tl.constexpr, WORLD: tl.constexpr, TENSORS: tl.constexpr,
    BALANCED: tl.constexpr, FEEDBACK: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    RULE: tl.constexpr,
):  # fmt: skip
    """One chunk of the bucket; and, in the last program, what is kept.

    gain: of a cell's sum, what is a weight's. said: of a rank's own cell, what the table said of
    the weight; share: of what it did not say, how much waits.
    """
    program = tl.program_id(0)
    clipped = tl.load(beside + about).to(tl.float32)
    squared = tl.load(beside + about + 1).to(tl.float32)
    is_finite = _is_finite(clipped) & _is_finite(squared)
    step = tl.full((), 0.0, tl.float32)
    if MOST > 0:
        step = tl.load(used)
    if program == listed:
        place = tl.arange(0, TENSORS)
        there = (place < tensors) & is_finite
        if MOST > 0:
            after = _next_step(step, clipped, squared, MOST, RULE)
            tl.store(steps + place, tl.zeros((TENSORS,), tl.float32) + after, mask=there)
        if BALANCED:
            before = tl.load(size + place, mask=there, other=0.0)
            found = tl.load(beside + place, mask=there, other=0.0).to(tl.float32)
            after = tl.where(before > 0.0, before + rate * (found - before), found)
            tl.store(size + place, after, mask=there)
    else:
        entry = chunks + program * 4
        tensor = tl.load(entry)
        source, target, length = tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
        at = tl.arange(0, CHUNK)
        inside = at < length
        if tensor < 0:
            values = tl.load(beside + target + at, mask=inside, other=0.0).to(tl.float32)
        else:
            cell, sign = entries(
                target + at, 0,
                width, low_bits, highs, turns, flips, sign_mask, first_group, groups,
                tl.load(keys), tl.load(keys + 1), tl.load(keys + 2), tl.load(keys + 3), BLOCK,
            )  # fmt: skip
            scale = 1.0
            if BALANCED:
                scale = tl.load(scales + tensor)
            if MOST > 0:
                sums = (_levels_at(table, cell, inside, BITS) - MOST * WORLD).to(tl.float32) * step
            else:
                sums = tl.load(table + cell, mask=inside, other=0.0).to(tl.float32)
            values = negated(sums * gain, sign) * scale
            if FEEDBACK:
                if MOST > 0:
                    mine = (_levels_at(own, cell, inside, BITS) - MOST).to(tl.float32) * step
                else:
                    mine = tl.load(own + cell, mask=inside, other=0.0).to(tl.float32)
                left = tl.load(vector + target + at, mask=inside, other=0.0)
                left = (left - negated(mine * said, sign)) * (scale * share)
                tl.store(errors + target + at, left, mask=inside & is_finite)
        values = tl.where(is_finite, values, float("nan"))
        tl.store(bucket + source + at, values.to(bucket.dtype.element_ty), mask=inside)
