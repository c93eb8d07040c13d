"""The Triton programs of the sketch by permutation. Nothing is read but vectors and tables.

Tensors have three axes: blocks, runs of coordinates that share a word of signs, and places in a
run. What belongs to a block is computed once for it, and a thread holds VECTOR neighbours, so that
arithmetic stays below the time that memory takes. Numbers are those of permutation.py, in uint32.
Keys are arguments that nothing is compiled for.
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

# Arguments for whose values nothing is compiled.
RUN_TIME = [
    "width", "low_bits", "highs", "turns", "flips", "sign_mask", "first_group", "groups",
    "k0", "k1", "k2", "k3",
]  # fmt: skip


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def _half_mix(x, key):
    z = x * 0x9E3779B1 + key
    return (z ^ (z >> 16)) * 0x85EBCA6B


@triton.jit
def _turn(x, by, size):
    """x + by modulo size, both below it: the sum less size wraps to a huge number if too small."""
    moved = x + by
    return tl.minimum(moved, moved - size)


@triton.jit
def _words(group, k0, k1):
    """The two words of a group, from which all else follows."""
    first = _mix(group.to(tl.uint32) + k0.to(tl.uint32, bitcast=True))
    return first, _mix(first + k1.to(tl.uint32, bitcast=True))


@triton.jit
def _column_of(t, first, second, width, low_bits, highs, turns, k2, k3):
    """The column of blocks where block t of a group goes."""
    size, low_bits = width.to(tl.uint32), low_bits.to(tl.uint32)
    highs, turns = highs.to(tl.uint32), turns.to(tl.uint32)
    k2, k3 = k2.to(tl.uint32, bitcast=True), k3.to(tl.uint32, bitcast=True)
    lows = (low_bits * 0 + 1) << low_bits
    t = _turn(t, tl.umulhi(first, turns), size)
    high = t >> low_bits
    low = t & (lows - 1)
    low = low ^ tl.umulhi(_half_mix(high, first ^ k2), lows)
    high = _turn(high, tl.umulhi(_half_mix(low, second ^ k2), highs), highs)
    low = low ^ tl.umulhi(_half_mix(high, first ^ k3), lows)
    t = tl.where(t < highs * lows, (high << low_bits) | low, t)
    return _turn(t, tl.umulhi(second, turns), size)


@triton.jit
def _block_at(column, first, second, width, low_bits, highs, turns, k2, k3):
    """The block of a group that goes to a column: the same steps backwards."""
    size, low_bits = width.to(tl.uint32), low_bits.to(tl.uint32)
    highs, turns = highs.to(tl.uint32), turns.to(tl.uint32)
    k2, k3 = k2.to(tl.uint32, bitcast=True), k3.to(tl.uint32, bitcast=True)
    lows = (low_bits * 0 + 1) << low_bits
    t = _turn(column, size - tl.umulhi(second, turns), size)
    high = t >> low_bits
    low = t & (lows - 1)
    low = low ^ tl.umulhi(_half_mix(high, first ^ k3), lows)
    high = _turn(high, highs - tl.umulhi(_half_mix(low, second ^ k2), highs), highs)
    low = low ^ tl.umulhi(_half_mix(high, first ^ k2), lows)
    t = tl.where(t < highs * lows, (high << low_bits) | low, t)
    return _turn(t, size - tl.umulhi(first, turns), size)


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
        words = _mix(((t * BLOCK) >> 5) * 0x9E3779B1 + key) & mask
        words = (words >> ((t * BLOCK) & 31))[None, :, None, None]
    else:
        runs = ((place + tl.arange(0, W) * P).to(tl.uint32) ^ flip) >> 5
        words = _mix((t[:, None] * (BLOCK // 32) + runs[None, :]) * 0x9E3779B1 + key) & mask
        words = words[None, :, :, None]
    return (words << (31 - within)[None, None, None, :]) & 0x80000000


@triton.jit
def _negated(values, bits):
    return (values.to(tl.uint32, bitcast=True) ^ bits).to(tl.float32, bitcast=True)


@triton.jit
def _of_group(
    vector, strides, inside, begin, end, group, row, column, place,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    CUT: tl.constexpr, BLOCK: tl.constexpr,
    N: tl.constexpr, T: tl.constexpr, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """What a group adds to the cells of a tile; where it is CUT, its coordinates [begin, end)."""
    first, second = _words(first_group + row * groups + group, k0, k1)
    flip = first & flips.to(tl.uint32)
    t = _block_at(column, first, second, width, low_bits, highs, turns, k2, k3)
    at = _flipped_at(t, place, flip, BLOCK, W, P, VECTOR)
    if CUT:
        inside = inside & (at >= begin) & (at < end)
    values = tl.load(vector + strides + at, mask=inside, other=0.0).to(tl.float32)
    values = _in_place(values, flip, N, T, W, P, VECTOR)
    key = second ^ k3.to(tl.uint32, bitcast=True)
    return _negated(values, _sign_bits(t, place, flip, key, sign_mask, BLOCK, T, W, P))


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
        earlier += _of_group(
            vector + group * span, strides, inside, 0, 0, group, row, column, place,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
            False, BLOCK, N, T, W, P, VECTOR,
        )  # fmt: skip
    later = tl.zeros((N, T, W, P), tl.float32)
    for group in tl.range(groups // 2, groups - 1, loop_unroll_factor=UNROLL):
        later += _of_group(
            vector + group * span, strides, inside, 0, 0, group, row, column, place,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
            False, BLOCK, N, T, W, P, VECTOR,
        )  # fmt: skip
    last = groups - 1
    later += _of_group(
        vector + last * span, strides, inside, 0, (dim - last * span).to(tl.int32), last, row,
        column, place, width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
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
        total += _of_group(
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
        first, second = _words(first_group + row * groups + group, k0, k1)
        flip = first & flips.to(tl.uint32)
        column = _column_of(t, first, second, width, low_bits, highs, turns, k2, k3)
        at = _flipped_at(column, place, flip, BLOCK, W, P, VECTOR)
        cells = tl.load(table + row * cols + at, mask=there & (at < cols), other=0.0)
        cells = _in_place(cells, flip, 1, T, W, P, VECTOR)
        key = second ^ k3.to(tl.uint32, bitcast=True)
        bits = _sign_bits(t, place, flip * 0, key, sign_mask, BLOCK, T, W, P)
        values = values + (_negated(cells, bits),)
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


@triton.jit(do_not_specialize=RUN_TIME)
def write_estimates(
    out, table, dim, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, T: tl.constexpr, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
    ROWS: tl.constexpr, NETWORK: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    at, inside, values = _estimates(
        tl.program_id(0), table, dim, cols,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK, T, W, P, VECTOR, ROWS, NETWORK, LOWER, UPPER,
    )  # fmt: skip
    tl.store(out + at, values, mask=inside)


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


@triton.jit
def _entries(
    coordinate, row,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Cells and signs, the latter in the highest bit, of single coordinates in a row."""
    span = width.to(tl.int64) * BLOCK
    group = coordinate // span
    within = (coordinate - group * span).to(tl.uint32)
    first, second = _words(first_group + row * groups + group.to(tl.int32), k0, k1)
    t = within // BLOCK
    column = _column_of(t, first, second, width, low_bits, highs, turns, k2, k3)
    cell = column * BLOCK + ((within % BLOCK) ^ (first & flips.to(tl.uint32)))
    key = second ^ k3.to(tl.uint32, bitcast=True)
    word = _mix((within >> 5) * 0x9E3779B1 + key) & sign_mask.to(tl.uint32, bitcast=True)
    return cell.to(tl.int32), (word << (31 - (within & 31))) & 0x80000000


@triton.jit(do_not_specialize=[*RUN_TIME, "count"])
def query_entries(
    out, indices, count, table, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, SPAN: tl.constexpr,
    ROWS: tl.constexpr, NETWORK: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = at < count
    coordinate = tl.load(indices + at, mask=inside, other=0)
    values = ()
    for row in tl.static_range(ROWS):
        cell, sign = _entries(
            coordinate, row,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
            BLOCK,
        )  # fmt: skip
        values = values + (_negated(tl.load(table + row * cols + cell), sign),)
    for step in tl.static_range(len(NETWORK)):
        values = exchange(values, NETWORK[step][0], NETWORK[step][1])
    if LOWER == UPPER:
        middle = values[LOWER]
    else:
        middle = 0.5 * values[LOWER] + 0.5 * values[UPPER]
    tl.store(out + at, middle, mask=inside)


@triton.jit(do_not_specialize=[*RUN_TIME, "count"])
def place_entries(
    cells, signed, indices, values, count, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """The cell of each entry in each row, counted through all rows, and its signed value."""
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    row = tl.program_id(1)
    inside = at < count
    coordinate = tl.load(indices + at, mask=inside, other=0)
    value = tl.load(values + at, mask=inside, other=0.0)
    cell, sign = _entries(
        coordinate, row,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK,
    )  # fmt: skip
    to = row.to(tl.int64) * count + at
    tl.store(cells + to, row.to(tl.int64) * cols + cell, mask=inside)
    tl.store(signed + to, _negated(value, sign), mask=inside)


@triton.jit(do_not_specialize=[*RUN_TIME, "count"])
def mark_entries(
    marks, indices, values, count, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Write a one to each cell that holds a coordinate whose value is not zero."""
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    row = tl.program_id(1)
    inside = at < count
    coordinate = tl.load(indices + at, mask=inside, other=0)
    marked = tl.load(values + at, mask=inside, other=0.0) != 0
    cell, sign = _entries(
        coordinate, row,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK,
    )  # fmt: skip
    tl.store(marks + row.to(tl.int64) * cols + cell, marked.to(tl.uint8), mask=marked)


@triton.jit(do_not_specialize=[*RUN_TIME, "count"])
def count_loads(
    loads, cells, count, dim,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """How many coordinates the given cells of the first row hold: all groups' but the last's?"""
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = at < count
    cell = tl.load(cells + at, mask=inside, other=0).to(tl.uint32)
    last = groups - 1
    first, second = _words(first_group + last, k0, k1)
    t = _block_at(cell // BLOCK, first, second, width, low_bits, highs, turns, k2, k3)
    within = t * BLOCK + ((cell % BLOCK) ^ (first & flips.to(tl.uint32)))
    there = last.to(tl.int64) * width * BLOCK + within.to(tl.int64) < dim
    tl.store(loads + at, last + there.to(tl.int32), mask=inside)
