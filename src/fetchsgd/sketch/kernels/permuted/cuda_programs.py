"""The Triton programs that sum or walk over everything. Nothing is read but vectors and tables.

Tensors have four axes: vectors, parts of a block, blocks, and places in a part, which share a word
of signs. Threads are spread over the last two. What belongs to a block is computed by each thread
that holds some of it, so a thread holds VECTOR neighbours in every part and of every vector: that
keeps arithmetic below the time that memory takes.
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
def _exchanged(values, wanted, N: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr):
    """Neighbours change places, in registers, if that is wanted."""
    left, right = tl.split(tl.reshape(values, (N, W, T, P // 2, 2)))
    swapped = tl.join(tl.where(wanted, right, left), tl.where(wanted, left, right))
    return tl.reshape(swapped, (N, W, T, P))


@triton.jit
def _exchanged_pairs(
    values, wanted, N: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr
):
    """The same at distance two."""
    pairs = tl.permute(tl.reshape(values, (N, W, T, P // 4, 2, 2)), (0, 1, 2, 3, 5, 4))
    left, right = tl.split(pairs)
    swapped = tl.join(tl.where(wanted, right, left), tl.where(wanted, left, right))
    return tl.reshape(tl.permute(swapped, (0, 1, 2, 3, 5, 4)), (N, W, T, P))


@triton.jit
def _in_place(
    values, flip, N: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Values read at aligned places, each moved to its own."""
    if VECTOR >= 2:
        values = _exchanged(values, (flip & 1) != 0, N, W, T, P)
    if VECTOR >= 4:
        values = _exchanged_pairs(values, (flip & 2) != 0, N, W, T, P)
    return values


@triton.jit
def _flipped_at(
    t, place, flip, BLOCK: tl.constexpr, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr
):
    """Where blocks t have these places, flipped but for what _in_place does: (1, W, T, P)."""
    flip = flip.to(tl.int32) & (-VECTOR)
    part = (place + tl.arange(0, W) * P) ^ (flip & (-P))
    within = tl.arange(0, P) ^ (flip & (P - 1))
    parts = t.to(tl.int32)[None, None, :, None] * BLOCK + part[None, :, None, None]
    at = parts + within[None, None, None, :]
    # The compiler cannot know: VECTOR neighbours stay neighbours, in order.
    return tl.max_contiguous(tl.multiple_of(at, [1, 1, 1, VECTOR]), [1, 1, 1, VECTOR])


@triton.jit
def _sign_words(
    t, place, flip, key, mask,
    BLOCK: tl.constexpr, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """The words that have the signs of blocks t, from their first bit on: (1, 1 or W, T, 1)."""
    mask = mask.to(tl.uint32, bitcast=True)
    if BLOCK < 32:
        drawn = mix(((t * BLOCK) >> 5) * 0x9E3779B1 + key) & mask
        return (drawn >> ((t * BLOCK) & 31))[None, None, :, None]
    else:
        # Parts of one run have equal numbers here, which are constants, and share a word.
        flip = flip.to(tl.int32) & (-VECTOR)
        part = tl.arange(0, W) * P
        runs = ((place // 32 + part // 32) ^ (flip // 32)).to(tl.uint32)
        drawn = mix((t[None, :] * (BLOCK // 32) + runs[:, None]) * 0x9E3779B1 + key) & mask
        return drawn[None, :, :, None]


@triton.jit
def _sign_bits(drawn, flip, W: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr):
    """The signs of what _flipped_at gives, in the highest bit, from their words: (1, W, T, P)."""
    flip = flip.to(tl.int32) & (-VECTOR)
    part, within = tl.arange(0, W) * P, tl.arange(0, P)
    # First what VECTOR neighbours have in common, then what is known to the compiler.
    common = 32 - VECTOR - ((part ^ (flip & (-P))) & 31)[:, None]
    common = common - ((within & (-VECTOR)) ^ (flip & (P - 1)))[None, :]
    own = VECTOR - 1 - (within & (VECTOR - 1))
    drawn = drawn << common.to(tl.uint32)[None, :, None, :]
    return (drawn << own.to(tl.uint32)[None, None, None, :]) & 0x80000000


@triton.jit
def of_group(
    vector, strides, begin, end, group, row, column, place,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    CUT: tl.constexpr, BLOCK: tl.constexpr,
    N: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """What a group adds to the cells of a tile; where it is CUT, its coordinates [begin, end)."""
    first, second = words(first_group + row * groups + group, k0, k1)
    flip = first & flips.to(tl.uint32)
    t = block_at(column, first, second, width, low_bits, highs, turns, k2, k3)
    at = _flipped_at(t, place, flip, BLOCK, W, P, VECTOR)
    if CUT:
        values = tl.load(vector + strides + at, mask=(at >= begin) & (at < end), other=0.0)
    else:
        values = tl.load(vector + strides + at)
    key = second ^ k3.to(tl.uint32, bitcast=True)
    drawn = _sign_words(t, place, flip, key, sign_mask, BLOCK, W, P, VECTOR)
    bits = _sign_bits(drawn, flip, W, P, VECTOR)
    return _in_place(negated(values.to(tl.float32), bits), flip, N, W, T, P, VECTOR)


@triton.jit
def _of_one(found, lane, SHARE: tl.constexpr):
    """What one of the threads that share a block has found, for all of them."""
    chosen = tl.arange(0, SHARE)[None, :] == lane
    return tl.sum(tl.where(chosen, found, 0), axis=1)


@triton.jit
def _shared_groups(
    vector, strides, begin, end, row, column, place, span,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr,
    N: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
    VECTOR: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """_of_groups where each of SHARE threads of a block finds the block of another group for all.

    Signs are shared out in the same way, if all of a block are in one word.
    """
    k = k3.to(tl.uint32, bitcast=True)
    sums = tl.zeros((N, W, T, P), tl.float32)
    for base in range(begin, end, SHARE):
        number = first_group + row * groups + base
        first, second = words(number + tl.arange(0, SHARE)[None, :], k0, k1)
        blocks = block_at(column[:, None], first, second, width, low_bits, highs, turns, k2, k3)
        if BLOCK < 32:
            drawn = mix(((blocks * BLOCK) >> 5) * 0x9E3779B1 + (second ^ k))
            drawn = (drawn & sign_mask.to(tl.uint32, bitcast=True)) >> ((blocks * BLOCK) & 31)
        read, found = (), ()
        for lane in tl.static_range(SHARE):
            flip = words(number + lane, k0, k1)[0] & flips.to(tl.uint32)
            t = _of_one(blocks, lane, SHARE)
            at = _flipped_at(t, place, flip, BLOCK, W, P, VECTOR)
            source = vector + (base + lane) * span + strides
            # Behind the last group zeros are added, which change nothing.
            read = read + (tl.load(source + at, mask=base + lane < end, other=0.0),)
            found = found + (t,)
        for lane in tl.static_range(SHARE):
            first, second = words(number + lane, k0, k1)
            flip = first & flips.to(tl.uint32)
            if BLOCK < 32:
                signs = _of_one(drawn, lane, SHARE)[None, None, :, None]
            else:
                signs = _sign_words(
                    found[lane], place, flip, second ^ k, sign_mask, BLOCK, W, P, VECTOR
                )
            signed = negated(read[lane].to(tl.float32), _sign_bits(signs, flip, W, P, VECTOR))
            sums += _in_place(signed, flip, N, W, T, P, VECTOR)
    return sums


@triton.jit
def _of_groups(
    vector, strides, begin, end, row, column, place, span,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr,
    N: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
    VECTOR: tl.constexpr, UNROLL: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """What groups [begin, end), which are whole, add to the cells of a tile, in order."""
    if SHARE > 1:
        sums = _shared_groups(
            vector, strides, begin, end, row, column, place, span,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
            BLOCK, N, W, T, P, VECTOR, SHARE,
        )  # fmt: skip
    else:
        sums = tl.zeros((N, W, T, P), tl.float32)
        for group in tl.range(begin, end, loop_unroll_factor=UNROLL):
            sums += of_group(
                vector + group * span, strides, 0, 0, group, row, column, place,
                width, low_bits, highs, turns, flips, sign_mask, first_group, groups,
                k0, k1, k2, k3,
                False, BLOCK, N, W, T, P, VECTOR,
            )  # fmt: skip
    return sums


@triton.jit
def _tile(rows, count, width, BLOCK: tl.constexpr,
          N: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr):  # fmt: skip
    """The row, the first cell, the columns and the vectors that a program sums.

    Columns and vectors that are not there are read as the last ones, so that no read needs a mask.
    """
    # Rows next to each other read the same part of a vector at about the same time.
    row = tl.program_id(0) % rows
    start = tl.program_id(0) // rows * (T * W * P)
    column = tl.minimum(start // BLOCK + tl.arange(0, T), width - 1).to(tl.uint32)
    n = tl.minimum(tl.program_id(1) * N + tl.arange(0, N), count - 1)
    return row, start, column, n.to(tl.int64)[:, None, None, None]


@triton.jit
def _write_tile(
    out, sums, row, start, rows, count, cols, width,
    BLOCK: tl.constexpr, N: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Write the cells of a tile; those in no column are zero."""
    n = (tl.program_id(1) * N + tl.arange(0, N)).to(tl.int64)[:, None, None, None]
    cells = start + tl.arange(0, W)[:, None, None] * P + tl.arange(0, T)[:, None] * BLOCK
    cells = (cells + tl.arange(0, P))[None, :, :, :]
    sums = tl.where(cells < width * BLOCK, sums, 0.0)
    target = out + (n * rows + row) * cols
    tl.store(target + cells, sums, mask=(n < count) & (cells < cols))


@triton.jit(do_not_specialize=RUN_TIME)
def gather(
    out, vector, stride, count, dim, rows, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr,
    N: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
    VECTOR: tl.constexpr, UNROLL: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """Sum a tile of cells over all groups, in order, for N vectors at once."""
    row, start, column, n = _tile(rows, count, width, BLOCK, N, W, T, P)
    place = start % BLOCK
    strides = n * stride
    span = width.to(tl.int64) * BLOCK
    earlier = _of_groups(
        vector, strides, 0, groups // 2, row, column, place, span,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK, N, W, T, P, VECTOR, UNROLL, SHARE,
    )  # fmt: skip
    later = _of_groups(
        vector, strides, groups // 2, groups - 1, row, column, place, span,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK, N, W, T, P, VECTOR, UNROLL, SHARE,
    )  # fmt: skip
    last = groups - 1
    later += of_group(
        vector + last * span, strides, 0, (dim - last * span).to(tl.int32), last, row,
        column, place,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        True, BLOCK, N, W, T, P, VECTOR,
    )  # fmt: skip
    _write_tile(out, earlier + later, row, start, rows, count, cols, width, BLOCK, N, W, T, P)


@triton.jit(do_not_specialize=[*RUN_TIME, "listed"])
def gather_pieces(
    out, like, segments, listed, count, rows, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, N: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The same for vectors in pieces, segment by segment: what one piece has of one group.

    A segment is listed as its group, the coordinates [begin, end) of the group, and the address and
    stride of the vectors' first coordinate of that group, if the piece went back that far.
    """
    row, start, column, n = _tile(rows, count, width, BLOCK, N, W, T, P)
    earlier = tl.zeros((N, W, T, P), tl.float32)
    total = tl.zeros((N, W, T, P), tl.float32)
    for segment in range(listed):
        entry = segments + segment * 5
        vector = tl.load(entry + 3).to(like.dtype)
        group = tl.load(entry).to(tl.int32)
        begin = tl.load(entry + 1).to(tl.int32)
        if (group == groups // 2) & (begin == 0):  # the second half begins, with a sum of its own
            earlier = total
            total = tl.zeros((N, W, T, P), tl.float32)
        total += of_group(
            vector, n * tl.load(entry + 4),
            begin, tl.load(entry + 2).to(tl.int32), group, row, column, start % BLOCK,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
            True, BLOCK, N, W, T, P, 1,
        )  # fmt: skip
    _write_tile(out, earlier + total, row, start, rows, count, cols, width, BLOCK, N, W, T, P)


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
        at = _flipped_at(column, place, flip, BLOCK, W, P, VECTOR)
        row_of_table = table + tl.full((), row, tl.int64) * cols
        if VECTOR == 1:  # where there is a cell for each coordinate, the last block may be cut
            cells = tl.load(row_of_table + at, mask=at < cols, other=0.0)
        else:
            cells = tl.load(row_of_table + at)
        cells = _in_place(cells, flip, 1, W, T, P, VECTOR)
        key = second ^ k3.to(tl.uint32, bitcast=True)
        drawn = _sign_words(t, place, flip * 0, key, sign_mask, BLOCK, W, P, VECTOR)
        bits = _sign_bits(drawn, flip * 0, W, P, VECTOR)
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
