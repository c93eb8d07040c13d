"""The Triton programs that sum or walk over everything. Nothing is read but vectors and tables.

Tensors have four axes: vectors, blocks, runs of coordinates that share a word of signs, and places
in a run. What belongs to a block is computed for each thread that holds some of it, and a thread
holds VECTOR neighbours, so that arithmetic stays below the time that memory takes.
"""

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
from fetchsgd.sketch.kernels.permuted.hash_programs import (
    RUN_TIME,
    block_at,
    column_of,
    mix,
    negated,
    words,
)


@triton.jit
def _exchanged(values, wanted, N: tl.constexpr, T: tl.constexpr, W: tl.constexpr, P: tl.constexpr):
    """Neighbours change places, in registers, if that is wanted."""
    left, right = tl.split(tl.reshape(values, (N, T, W, P // 2, 2)))
    swapped = tl.join(tl.where(wanted, right, left), tl.where(wanted, left, right))
    return tl.reshape(swapped, (N, T, W, P))


@triton.jit
def _exchanged_pairs(
    values, wanted, N: tl.constexpr, T: tl.constexpr, W: tl.constexpr, P: tl.constexpr
):
    """The same at distance two."""
    pairs = tl.permute(tl.reshape(values, (N, T, W, P // 4, 2, 2)), (0, 1, 2, 3, 5, 4))
    left, right = tl.split(pairs)
    swapped = tl.join(tl.where(wanted, right, left), tl.where(wanted, left, right))
    return tl.reshape(tl.permute(swapped, (0, 1, 2, 3, 5, 4)), (N, T, W, P))


@triton.jit
def _in_place(
    values, flip, N: tl.constexpr, T: tl.constexpr, W: tl.constexpr, P: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Values read at aligned places, each moved to its own."""
    if VECTOR >= 2:
        values = _exchanged(values, (flip & 1) != 0, N, T, W, P)
    if VECTOR >= 4:
        values = _exchanged_pairs(values, (flip & 2) != 0, N, T, W, P)
    return values


@triton.jit
def _flipped_at(
    t, place, flip, BLOCK: tl.constexpr, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr
):
    """Where blocks t have these places, flipped but for what _in_place does: (1, T, W, P)."""
    flip = flip.to(tl.int32) & (-VECTOR)
    run = (place + tl.arange(0, W) * P) ^ (flip & (-P))
    within = tl.arange(0, P) ^ (flip & (P - 1))
    runs = t.to(tl.int32)[None, :, None, None] * BLOCK + run[None, None, :, None]
    at = runs + within[None, None, None, :]
    # The compiler cannot know: VECTOR neighbours stay neighbours, in order.
    return tl.max_contiguous(tl.multiple_of(at, [1, 1, 1, VECTOR]), [1, 1, 1, VECTOR])


@triton.jit
def _sign_bits(
    t, place, flip, key, mask,
    BLOCK: tl.constexpr, T: tl.constexpr, W: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The sign of the coordinates at these places of blocks t in the highest bit: (1, T, W, P)."""
    mask = mask.to(tl.uint32, bitcast=True)
    within = tl.arange(0, P).to(tl.uint32) ^ (flip & (P - 1))
    if BLOCK < 32:
        drawn = mix(((t * BLOCK) >> 5) * 0x9E3779B1 + key) & mask
        drawn = (drawn >> ((t * BLOCK) & 31))[None, :, None, None]
    else:
        runs = ((place + tl.arange(0, W) * P).to(tl.uint32) ^ flip) >> 5
        drawn = mix((t[:, None] * (BLOCK // 32) + runs[None, :]) * 0x9E3779B1 + key) & mask
        drawn = drawn[None, :, :, None]
    return (drawn << (31 - within)[None, None, None, :]) & 0x80000000


@triton.jit
def of_group(
    vector, strides, inside, begin, end, group, row, column, place,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    CUT: tl.constexpr, BLOCK: tl.constexpr,
    N: tl.constexpr, T: tl.constexpr, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """What a group adds to the cells of a tile; where it is CUT, its coordinates [begin, end)."""
    first, second = words(first_group + row * groups + group, k0, k1)
    flip = first & flips.to(tl.uint32)
    t = block_at(column, first, second, width, low_bits, highs, turns, k2, k3)
    at = _flipped_at(t, place, flip, BLOCK, W, P, VECTOR)
    if CUT:
        inside = inside & (at >= begin) & (at < end)
    values = tl.load(vector + strides + at, mask=inside, other=0.0).to(tl.float32)
    values = _in_place(values, flip, N, T, W, P, VECTOR)
    key = second ^ k3.to(tl.uint32, bitcast=True)
    return negated(values, _sign_bits(t, place, flip, key, sign_mask, BLOCK, T, W, P))


@triton.jit(do_not_specialize=RUN_TIME)
def gather(
    out, vector, stride, count, dim, rows, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr,
    N: tl.constexpr, T: tl.constexpr, W: tl.constexpr, P: tl.constexpr,
    VECTOR: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Sum a tile of cells over all groups, in order, for N vectors at once."""
    # Rows next to each other read the same part of a vector at about the same time.
    row = tl.program_id(0) % rows
    start = tl.program_id(0) // rows * (T * W * P)
    column = (start // BLOCK + tl.arange(0, T)).to(tl.uint32)
    place = start % BLOCK
    n = (tl.program_id(1) * N + tl.arange(0, N)).to(tl.int64)[:, None, None, None]
    inside = (n < count) & (column < width.to(tl.uint32))[None, :, None, None]
    strides = n * stride
    span = width.to(tl.int64) * BLOCK
    earlier = tl.zeros((N, T, W, P), tl.float32)
    for group in tl.range(0, groups // 2, loop_unroll_factor=UNROLL):
        earlier += of_group(
            vector + group * span, strides, inside, 0, 0, group, row, column, place,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
            False, BLOCK, N, T, W, P, VECTOR,
        )  # fmt: skip
    later = tl.zeros((N, T, W, P), tl.float32)
    for group in tl.range(groups // 2, groups - 1, loop_unroll_factor=UNROLL):
        later += of_group(
            vector + group * span, strides, inside, 0, 0, group, row, column, place,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
            False, BLOCK, N, T, W, P, VECTOR,
        )  # fmt: skip
    last = groups - 1
    later += of_group(
        vector + last * span, strides, inside, 0, (dim - last * span).to(tl.int32), last, row,
        column, place,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        True, BLOCK, N, T, W, P, VECTOR,
    )  # fmt: skip
    cells = start + tl.arange(0, T)[:, None, None] * BLOCK + tl.arange(0, W)[:, None] * P
    cells = (cells + tl.arange(0, P))[None, :, :, :]
    target = out + (n * rows + row) * cols
    tl.store(target + cells, earlier + later, mask=(n < count) & (cells < cols))


@triton.jit(do_not_specialize=[*RUN_TIME, "listed"])
def gather_pieces(
    out, like, segments, listed, count, rows, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, N: tl.constexpr, T: tl.constexpr, W: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The same for vectors in pieces, segment by segment: what one piece has of one group.

    A segment is listed as its group, the coordinates [begin, end) of the group, and the address and
    stride of the vectors' first coordinate of that group, if the piece went back that far.
    """
    # Rows next to each other read the same part of a vector at about the same time.
    row = tl.program_id(0) % rows
    start = tl.program_id(0) // rows * (T * W * P)
    column = (start // BLOCK + tl.arange(0, T)).to(tl.uint32)
    place = start % BLOCK
    n = (tl.program_id(1) * N + tl.arange(0, N)).to(tl.int64)[:, None, None, None]
    inside = (n < count) & (column < width.to(tl.uint32))[None, :, None, None]
    earlier = tl.zeros((N, T, W, P), tl.float32)
    total = tl.zeros((N, T, W, P), tl.float32)
    for segment in range(listed):
        entry = segments + segment * 5
        vector = tl.load(entry + 3).to(like.dtype)
        group = tl.load(entry).to(tl.int32)
        begin = tl.load(entry + 1).to(tl.int32)
        if (group == groups // 2) & (begin == 0):  # the second half begins, with a sum of its own
            earlier = total
            total = tl.zeros((N, T, W, P), tl.float32)
        total += of_group(
            vector, n * tl.load(entry + 4), inside,
            begin, tl.load(entry + 2).to(tl.int32), group, row, column, place,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
            True, BLOCK, N, T, W, P, 1,
        )  # fmt: skip
    cells = start + tl.arange(0, T)[:, None, None] * BLOCK + tl.arange(0, W)[:, None] * P
    cells = (cells + tl.arange(0, P))[None, :, :, :]
    target = out + (n * rows + row) * cols
    tl.store(target + cells, earlier + total, mask=(n < count) & (cells < cols))


@triton.jit
def _estimates(
    span, table, dim, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, T: tl.constexpr, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
    ROWS: tl.constexpr, NETWORK: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    """The coordinates of one span, which of them exist, and their estimates: (T, W, P)."""
    spans = tl.cdiv(width * (BLOCK // (W * P)), T)
    group = span // spans
    start = (span % spans) * (T * W * P)
    block = start // BLOCK + tl.arange(0, T)
    place = start % BLOCK
    t = block.to(tl.uint32)
    there = (block < width)[None, :, None, None]
    values = ()
    for row in tl.static_range(ROWS):
        first, second = words(first_group + row * groups + group, k0, k1)
        flip = first & flips.to(tl.uint32)
        column = column_of(t, first, second, width, low_bits, highs, turns, k2, k3)
        at = _flipped_at(column, place, flip, BLOCK, W, P, VECTOR)
        mask = there
        if VECTOR == 1:  # where there is a cell for each coordinate, the last block may be cut
            mask = there & (at < cols)
        cells = tl.load(table + tl.full((), row, tl.int64) * cols + at, mask=mask, other=0.0)
        cells = _in_place(cells, flip, 1, T, W, P, VECTOR)
        key = second ^ k3.to(tl.uint32, bitcast=True)
        bits = _sign_bits(t, place, flip * 0, key, sign_mask, BLOCK, T, W, P)
        values = values + (negated(cells, bits),)
    for step in tl.static_range(len(NETWORK)):
        values = exchange(values, NETWORK[step][0], NETWORK[step][1])
    if LOWER == UPPER:
        middle = values[LOWER]
    else:
        middle = 0.5 * values[LOWER] + 0.5 * values[UPPER]
    within = start + tl.arange(0, T)[:, None, None] * BLOCK + tl.arange(0, W)[:, None] * P
    within = within + tl.arange(0, P)
    coordinate = group.to(tl.int64) * width * BLOCK + within
    inside = (coordinate < dim) & (block < width)[:, None, None]
    return coordinate, inside, tl.reshape(middle, (T, W, P))


@triton.jit(do_not_specialize=[*RUN_TIME, "program", "begin", "end"])
def write_estimates(
    out, program, begin, end, table, dim, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, T: tl.constexpr, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
    ROWS: tl.constexpr, NETWORK: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    """Those of coordinates [begin, end), in programs from number `program` on."""
    at, inside, values = _estimates(
        program + tl.program_id(0), table, dim, cols,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK, T, W, P, VECTOR, ROWS, NETWORK, LOWER, UPPER,
    )  # fmt: skip
    tl.store(out + (at - begin), values, mask=inside & (at >= begin) & (at < end))


@triton.jit
def _in_order(at, inside, values, SPAN: tl.constexpr):
    """What _estimates gives, along one axis."""
    return tl.reshape(at, (SPAN,)), tl.reshape(inside, (SPAN,)), tl.reshape(values, (SPAN,))


@triton.jit(do_not_specialize=RUN_TIME)
def append_reached(
    indices, kept_values, count, capacity, threshold, table, dim, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, T: tl.constexpr, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
    ROWS: tl.constexpr, NETWORK: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    """Append what reaches the threshold, in any order."""
    at, inside, values = _estimates(
        tl.program_id(0), table, dim, cols,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK, T, W, P, VECTOR, ROWS, NETWORK, LOWER, UPPER,
    )  # fmt: skip
    at, inside, values = _in_order(at, inside, values, T * W * P)
    append(indices, kept_values, count, capacity, tl.load(threshold), at, inside, values)


@triton.jit(do_not_specialize=RUN_TIME)
def count_reached(
    counts, threshold, spans, table, dim, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, T: tl.constexpr, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
    ROWS: tl.constexpr, NETWORK: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    """How many estimates of a span lie above the threshold, and how many on it."""
    tl.static_assert(T * W * P < 65536)
    span = tl.program_id(0)
    at, inside, values = _estimates(
        span, table, dim, cols,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK, T, W, P, VECTOR, ROWS, NETWORK, LOWER, UPPER,
    )  # fmt: skip
    count_span(counts, span, spans, tl.load(threshold), inside, values)


@triton.jit(do_not_specialize=RUN_TIME)
def write_reached(
    indices, kept_values, size, counts, ends, threshold, spans, table, dim, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, T: tl.constexpr, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
    ROWS: tl.constexpr, NETWORK: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    """Write what is above the threshold and the first ties, each to its rank in index order."""
    span = tl.program_id(0)
    needed, above_before, equal_before, room = ranks_of_span(counts, ends, span, spans, size)
    if needed:
        at, inside, values = _estimates(
            span, table, dim, cols,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
            BLOCK, T, W, P, VECTOR, ROWS, NETWORK, LOWER, UPPER,
        )  # fmt: skip
        at, inside, values = _in_order(at, inside, values, T * W * P)
        write_span(
            indices, kept_values, size, above_before, equal_before, room,
            tl.load(threshold), at, inside, values,
        )  # fmt: skip
