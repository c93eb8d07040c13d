"""Triton programs that go over the cells of one row, for one_row.py."""

# mypy: ignore-errors
# Compiled by Triton, which has no types and needs none.

from __future__ import annotations

import triton
import triton.language as tl

from fetchsgd.sketch.kernels.permuted.entry_programs import entries
from fetchsgd.sketch.kernels.permuted.hash_programs import RUN_TIME, block_at, words


@triton.jit
def _coordinates(
    cell, group,
    width, low_bits, highs, turns, flips, first_group, k0, k1, k2, k3, BLOCK: tl.constexpr,
):  # fmt: skip
    """What cells hold of a group; in the last group there may be no such coordinate."""
    cell = cell.to(tl.uint32)
    first, second = words(first_group + group, k0, k1)
    t = block_at(cell // BLOCK, first, second, width, low_bits, highs, turns, k2, k3)
    within = t * BLOCK + ((cell % BLOCK) ^ (first & flips.to(tl.uint32)))
    return group.to(tl.int64) * width * BLOCK + within.to(tl.int64)


@triton.jit
def _loads(
    cell, dim,
    width, low_bits, highs, turns, flips, first_group, groups, k0, k1, k2, k3, BLOCK: tl.constexpr,
):  # fmt: skip
    """How many coordinates cells hold: of all groups, but maybe the last."""
    last = _coordinates(
        cell, groups - 1, width, low_bits, highs, turns, flips, first_group, k0, k1, k2, k3, BLOCK
    )
    return groups - 1 + (last < dim).to(tl.int32)


@triton.jit(do_not_specialize=[*RUN_TIME, "count", "dim"])
def count_loads(
    loads, cells, count, dim,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """How many coordinates these cells hold."""
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = at < count
    cell = tl.load(cells + at, mask=inside, other=0)
    found = _loads(
        cell, dim, width, low_bits, highs, turns, flips, first_group, groups, k0, k1, k2, k3, BLOCK
    )
    tl.store(loads + at, found, mask=inside)


@triton.jit(do_not_specialize=[*RUN_TIME, "count", "dim"])
def tally_cells(
    tally, row, count, threshold, dim,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Add how many coordinates are in cells above the threshold, and how many cells are on it."""
    cell = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = cell < count
    magnitude = tl.abs(tl.load(row + cell, mask=inside, other=0.0))
    level = tl.load(threshold)
    above = inside & (magnitude > level)
    if tl.sum(above.to(tl.int32)) > 0:
        found = _loads(
            cell, dim,
            width, low_bits, highs, turns, flips, first_group, groups, k0, k1, k2, k3, BLOCK,
        )  # fmt: skip
        tl.atomic_add(tally, tl.sum(tl.where(above, found, 0).to(tl.int64)))
    tied = tl.sum((inside & (magnitude == level)).to(tl.int32))
    if tied > 0:
        tl.atomic_add(tally + 1, tied.to(tl.int64))


@triton.jit
def _shares_of_ties(tally, size, groups):
    """Of how many groups all ties are wanted, and how many of the next one."""
    wanted = size - tl.load(tally)
    tied = tl.maximum(tl.load(tally + 1), 1)
    whole = tl.minimum(wanted // tied, groups - 1)
    return whole.to(tl.int32), wanted - whole * tied


@triton.jit(do_not_specialize=[*RUN_TIME, "size", "count", "dim"])
def weigh_cells(
    weights, tally, size, row, count, threshold, dim,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """How many coordinates each cell gives, without the group of which not all ties are wanted.

    Cells are in that group's order. Behind all of them: which are ties that have one more.
    """
    whole, _ = _shares_of_ties(tally, size, groups)
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    inside = at < count
    coordinate = whole.to(tl.int64) * width * BLOCK + at
    cell, _ = entries(
        coordinate, 0,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK,
    )  # fmt: skip
    magnitude = tl.abs(tl.load(row + cell, mask=inside, other=0.0))
    level = tl.load(threshold)
    found = _loads(
        cell, dim, width, low_bits, highs, turns, flips, first_group, groups, k0, k1, k2, k3, BLOCK
    )
    tied = magnitude == level
    given = tl.where(magnitude > level, found, tl.where(tied, whole, 0))
    tl.store(weights + at, given, mask=inside)
    tl.store(weights + count + at, (tied & (coordinate < dim)).to(tl.int32), mask=inside)


@triton.jit
def _given(ends, at, count, more):
    """How many coordinates the first cells give, up to and including this one."""
    ties = tl.load(ends + count + at) - tl.load(ends + count - 1)
    return tl.load(ends + at) + tl.minimum(ties, more)


@triton.jit(do_not_specialize=[*RUN_TIME, "size", "count", "steps"])
def list_coordinates(
    listed, tally, size, ends, count, steps,
    width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
    BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Entry i: find the cell that gives it, by bisection in `steps`, and which of its groups."""
    whole, more = _shares_of_ties(tally, size, groups)
    i = tl.program_id(0).to(tl.int64) * SPAN + tl.arange(0, SPAN)
    low = tl.zeros((SPAN,), tl.int32)
    high = low + count
    for _ in range(steps):
        middle = tl.minimum((low + high) // 2, count - 1)
        beyond = _given(ends, middle, count, more) > i
        high = tl.where(beyond, middle, high)
        low = tl.where(beyond | (low == high), low, middle + 1)
    before = tl.where(low > 0, _given(ends, tl.maximum(low - 1, 0), count, more), 0)
    cell, _ = entries(
        whole.to(tl.int64) * width * BLOCK + low, 0,
        width, low_bits, highs, turns, flips, sign_mask, first_group, groups, k0, k1, k2, k3,
        BLOCK,
    )  # fmt: skip
    coordinate = _coordinates(
        cell, (i - before).to(tl.int32),
        width, low_bits, highs, turns, flips, first_group, k0, k1, k2, k3, BLOCK,
    )  # fmt: skip
    # A table with NaN fills fewer entries.
    tl.store(listed + i, coordinate, mask=(i < size) & (low < count))
