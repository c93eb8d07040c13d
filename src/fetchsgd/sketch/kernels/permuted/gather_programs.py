"""The Triton programs that sum vectors into tables, cell by cell, over all groups in order."""

# mypy: ignore-errors
# Compiled by Triton, which has no types and needs none.

from __future__ import annotations

import triton
import triton.language as tl

from fetchsgd.sketch.kernels.permuted.hash_programs import (
    RUN_TIME,
    block_at,
    negated,
    words,
)
from fetchsgd.sketch.kernels.permuted.tile_programs import (
    flipped_at,
    flipped_within,
    for_all,
    in_place,
    runs_for_all,
    sign_bits,
    sign_runs,
    sign_words,
)


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
    at = flipped_at(t, place, flip, BLOCK, W, P, VECTOR)
    if CUT:
        values = tl.load(vector + strides + at, mask=(at >= begin) & (at < end), other=0.0)
    else:
        values = tl.load(vector + strides + at)
    key = second ^ k3.to(tl.uint32, bitcast=True)
    drawn = sign_words(t, place, flip, key, sign_mask, BLOCK, W, P, VECTOR)
    bits = sign_bits(drawn, flip, W, P, VECTOR)
    return in_place(negated(values.to(tl.float32), bits), flip, N, W, T, P, VECTOR)


@triton.jit
def _full_steps(
    sums, vector, strides, begin, end, row, column, place, span,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr,
    N: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
    VECTOR: tl.constexpr, STEP: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """Add groups to a tile, STEP at a time from `begin` on, as long as there are so many.

    Each of the SHARE threads that read a part of a block finds the block of another group, and its
    signs, for all of them.
    """
    key = k3.to(tl.uint32, bitcast=True)
    flips = flips.to(tl.uint32)
    for base in range(begin, end - (STEP - 1), STEP):
        number = first_group + row * groups + base
        read, signs = (), ()
        for some in tl.static_range(0, STEP, SHARE):
            first, second = words(number + some + tl.arange(0, SHARE)[None, :], k0, k1)
            found = block_at(column[:, None], first, second, width, low_bits, highs, turns, k2, k3)
            drawn = sign_runs(found, place, first & flips, second ^ key, sign_mask, BLOCK, W, P)
            for lane in tl.static_range(SHARE):
                flip = words(number + some + lane, k0, k1)[0] & flips
                within = flipped_within(place, flip, W, P, VECTOR)
                source = vector + (base + some + lane) * span + strides + within
                blocks = for_all(found, lane, T, P, SHARE).to(tl.int64) * BLOCK
                read = read + (tl.load(source + blocks[None, None, :, :]),)
                signs = signs + (runs_for_all(drawn, lane, W, T, P, SHARE),)
        for i in tl.static_range(STEP):
            flip = words(number + i, k0, k1)[0] & flips
            signed = negated(read[i].to(tl.float32), sign_bits(signs[i], flip, W, P, VECTOR))
            sums += in_place(signed, flip, N, W, T, P, VECTOR)
    return sums


@triton.jit
def _of_groups(
    vector, strides, begin, end, row, column, place, span,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr,
    N: tl.constexpr, W: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
    VECTOR: tl.constexpr, STEP: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """What groups [begin, end), which are whole, add to the cells of a tile, in order."""
    sums = tl.zeros((N, W, T, P), tl.float32)
    if SHARE > 1:  # a block of four or fewer is read by one thread
        sums = _full_steps(
            sums, vector, strides, begin, end, row, column, place, span,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
            BLOCK, N, W, T, P, VECTOR, STEP, SHARE,
        )  # fmt: skip
        begin += (end - begin) // STEP * STEP
    for group in tl.range(begin, end, loop_unroll_factor=1 if SHARE > 1 else STEP):
        sums += of_group(
            vector + group * span, strides, 0, 0, group, row, column, place,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
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
    VECTOR: tl.constexpr, STEP: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """Sum a tile of cells over all groups, in order, for N vectors at once."""
    row, start, column, n = _tile(rows, count, width, BLOCK, N, W, T, P)
    place = start % BLOCK
    strides = n * stride
    span = width.to(tl.int64) * BLOCK
    earlier = _of_groups(
        vector, strides, 0, groups // 2, row, column, place, span,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK, N, W, T, P, VECTOR, STEP, SHARE,
    )  # fmt: skip
    later = _of_groups(
        vector, strides, groups // 2, groups - 1, row, column, place, span,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK, N, W, T, P, VECTOR, STEP, SHARE,
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
