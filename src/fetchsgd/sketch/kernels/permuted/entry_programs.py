"""Triton programs that look up single coordinates of the sketch by permutation."""

# mypy: ignore-errors
# Compiled by Triton, which has no types and needs none.

from __future__ import annotations

import triton
import triton.language as tl

from fetchsgd.sketch.kernels.cuda_programs import exchange
from fetchsgd.sketch.kernels.permuted.hash_programs import (
    RUN_TIME,
    column_of,
    mix,
    negated,
    words,
)


@triton.jit
def entries(
    coordinate, row,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Cells and signs, the latter in the highest bit, of single coordinates in a row."""
    span = width.to(tl.int64) * BLOCK
    group = coordinate // span
    within = (coordinate - group * span).to(tl.uint32)
    first, second = words(first_group + row * groups + group.to(tl.int32), k0, k1)
    t = within // BLOCK
    column = column_of(t, first, second, width, low_bits, highs, turns, k2, k3)
    cell = column * BLOCK + ((within % BLOCK) ^ (first & flips.to(tl.uint32)))
    key = second ^ k3.to(tl.uint32, bitcast=True)
    word = mix((within >> 5) * 0x9E3779B1 + key) & sign_mask.to(tl.uint32, bitcast=True)
    return cell.to(tl.int32), (word << (31 - (within & 31))) & 0x80000000


@triton.jit
def entry_medians(
    coordinate, table, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr, NETWORK: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    """The estimates of single coordinates."""
    values = ()
    for row in tl.static_range(ROWS):
        cell, sign = entries(
            coordinate, row,
            width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
            BLOCK,
        )  # fmt: skip
        cells = table + tl.full((), row, tl.int64) * cols
        values = values + (negated(tl.load(cells + cell), sign),)
    for step in tl.static_range(len(NETWORK)):
        values = exchange(values, NETWORK[step][0], NETWORK[step][1])
    if LOWER == UPPER:
        return values[LOWER]
    else:
        return 0.5 * values[LOWER] + 0.5 * values[UPPER]


@triton.jit(do_not_specialize=[*RUN_TIME, "count"])
def query_entries(
    out, indices, count, table, cols,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, SPAN: tl.constexpr,
    ROWS: tl.constexpr, NETWORK: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = at < count
    middle = entry_medians(
        tl.load(indices + at, mask=inside, other=0), table, cols,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK, ROWS, NETWORK, LOWER, UPPER,
    )  # fmt: skip
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
    cell, sign = entries(
        coordinate, row,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK,
    )  # fmt: skip
    to = row.to(tl.int64) * count + at
    tl.store(cells + to, row.to(tl.int64) * cols + cell, mask=inside)
    tl.store(signed + to, negated(value, sign), mask=inside)


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
    cell, sign = entries(
        coordinate, row,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK,
    )  # fmt: skip
    tl.store(marks + row.to(tl.int64) * cols + cell, marked.to(tl.uint8), mask=marked)
