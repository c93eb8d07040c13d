"""FindHeavy and Update of appendix B, for sketches of suffixes however they were chosen."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from fetchsgd.sketch.count_sketch import CountSketch, Table, Tables
from fetchsgd.vector import SparseVector


class Suffixes(NamedTuple):
    """Sketches of the sums of the last `ages` gradients; an empty slot has age 0."""

    tables: Tables  # (slots, rows, cols)
    ages: Int64[Tensor, " slots"]

    def oldest_first(self) -> list[tuple[int, int]]:
        """(slot, age) of those that are not empty. Waits for the device."""
        held = [(slot, age) for slot, age in enumerate(self.ages.tolist()) if age]
        return sorted(held, key=lambda one: -one[1])


class Found(NamedTuple):
    """Coordinates in order of index, each with its largest estimate, and the sketch that has it."""

    indices: Int64[Tensor, " n"]
    values: Float32[Tensor, " n"]
    ages: Int64[Tensor, " n"]  # of that sketch

    def at(self, places: Int64[Tensor, " m"]) -> Found:
        return Found(*(part[places] for part in self))

    def where(self, chosen: Bool[Tensor, " n"]) -> Found:
        return self.at(chosen.nonzero().squeeze(1))

    def vector(self, dim: int) -> SparseVector:
        return SparseVector.trusted(dim, self.indices, self.values)


def find_heavy(sketch: CountSketch, held: Suffixes, k: int, tau: float = 0.0) -> Found:
    """The k largest estimates of the union, of those with |U| >= tau * l2 in their own sketch.

    Where several sketches hold a coordinate, the largest of these estimates is taken: shorter sums
    hold a part of a signal. (To take the one that is the largest share of its sketch's norm, which
    has the least noise, was tried: among coordinates of mostly noise that is often a short sum, so
    little is sent, and training falls far behind.) What is among the k largest of all is among the
    k largest of its own sketch.
    """
    best: Found | None = None
    for slot, age in held.oldest_first():
        more = _largest(sketch, held.tables[slot], age, k, tau)
        best = more if best is None else _union(best, more, k)
    assert best is not None, "nothing was inserted"
    return best


def _largest(sketch: CountSketch, table: Table, age: int, k: int, tau: float) -> Found:
    """The k largest of one sketch, of those that reach tau."""
    top = sketch.top_k(table, k, check_finite=False)
    found = Found(top.indices, top.values, torch.full_like(top.indices, age))
    if not tau:
        return found
    reached = top.values.double().abs() >= tau * sketch.l2(table)
    return found.where(reached & (top.values != 0))


def _union(best: Found, more: Found, k: int) -> Found:
    """The k largest of both; of equal ones those of `best`, and then lower indices."""
    if len(best.indices) == k:
        more = more.where(more.values.abs() >= best.values.abs().min())
    both = Found(*(torch.cat(parts) for parts in zip(best, more, strict=True)))
    both = both.at(both.indices.argsort(stable=True))  # of two equal ones the first is from `best`
    sizes = both.values.abs()
    twice, second = both.indices[1:] == both.indices[:-1], sizes[1:] > sizes[:-1]
    kept = torch.ones_like(sizes, dtype=torch.bool)
    kept[:-1] &= ~(twice & second)
    kept[1:] &= ~(twice & ~second)
    both = both.where(kept)
    if len(both.indices) <= k:
        return both
    largest = both.values.abs().argsort(descending=True, stable=True)[:k]
    return both.at(largest.sort().values)


def update(
    sketch: CountSketch, held: Suffixes, found: Found, given: Float32[Tensor, " n"] | None = None
) -> Suffixes:
    """Every sketch loses what it holds of what was found.

    Those at least as old as the finder lose the value that it found; younger ones, which hold a
    part of that, their own estimate. Where less was given than found, the rest counts as part of
    the newest gradient, which is in all sketches; where nothing was given, nothing changes.
    """
    given = found.values if given is None else given
    rest = found.values - given
    tables = torch.zeros_like(held.tables)
    for slot, age in held.oldest_first():
        table = held.tables[slot]
        own = sketch.query(table, found.indices)
        taken = torch.where(found.ages <= age, given, own - rest)
        taken = torch.where(given == 0, 0, taken)
        gone = SparseVector.trusted(sketch.dim, found.indices, taken)
        torch.sub(table, sketch.sketch(gone), out=tables[slot])
    return Suffixes(tables, held.ages)


def clear(held: Suffixes, cells: Bool[Tensor, "rows cols"], left: Tensor) -> Suffixes:
    """Set these cells of every sketch to what is left there (`error_reset = "zero"`)."""
    if left.ndim:  # not a plain zero: empty slots stay empty
        cells = cells & (held.ages > 0)[:, None, None]
    return Suffixes(torch.where(cells, left, held.tables), held.ages)
