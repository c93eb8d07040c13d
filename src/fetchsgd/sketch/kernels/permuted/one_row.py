"""Top k of one row, from its cells: each estimate is its coordinate's cell, up to the sign.

Every cell holds one coordinate of each group, but maybe of the last, and groups follow one another
in order of coordinate. So cells above the threshold give all their coordinates. Those on it tie:
they give the coordinates of the first groups, and of one more group those with the lowest indices.
That takes a look at the table and at k coordinates instead of a walk over all, and memory for them.
"""

from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Float32, Int32, Int64
from torch import Tensor

from fetchsgd.sketch.kernels.selection import next_below
from fetchsgd.sketch.permutation import Permutation

# Up to 1 / LISTED of all coordinates are listed and sorted; a walk needs no sort.
LISTED = 128
# On a GPU, rows of at most so many cells are sorted whole: fewer launches than a selection.
SORTED_CELLS = 1 << 22


class CellKernels(Protocol):
    """What a device does with the cells that hold something, of a sketch with one row."""

    @property
    def hash(self) -> Permutation: ...

    def loads(self, cells: Int64[Tensor, " n"]) -> Int32[Tensor, " n"]:
        """How many coordinates these cells hold."""
        ...

    def tally(
        self, row: Float32[Tensor, " cells"], threshold: Float32[Tensor, " 1"]
    ) -> Int64[Tensor, " 2"]:
        """How many coordinates have larger estimates, and how many cells are as large."""
        ...

    def list_largest(
        self,
        row: Float32[Tensor, " cells"],
        threshold: Float32[Tensor, " 1"],
        tally: Int64[Tensor, " 2"],
        count: int,
    ) -> Tensor:
        """The first `count` coordinates, in any order: larger ones, then ties by lowest index."""
        ...

    def query(
        self, table: Float32[Tensor, "rows cols"], indices: Int64[Tensor, " n"]
    ) -> Float32[Tensor, " n"]: ...


Found = tuple[Int64[Tensor, " found"], Float32[Tensor, " found"]]


def top_k(kernels: CellKernels, table: Float32[Tensor, "rows cols"], k: int) -> Found | None:
    """The k largest |estimates| in order of index, or None where a walk has to find them."""
    if kernels.hash.rows > 1 or not 0 < k <= kernels.hash.dim // LISTED:
        return None
    row = held(kernels.hash, table)
    threshold = kth_largest(kernels, row, k)
    return _in_order(kernels, table, threshold, kernels.tally(row, threshold), k)


def at_least(
    kernels: CellKernels, table: Float32[Tensor, "rows cols"], threshold: float
) -> Found | None:
    """All with |estimate| >= threshold in order of index, or None where a walk has to find them."""
    if kernels.hash.rows > 1 or threshold == 0.0:
        return None
    below = torch.full((1,), next_below(threshold), device=table.device)
    tally = kernels.tally(held(kernels.hash, table), below)
    count = int(tally[0])
    if not 0 < count <= kernels.hash.dim // LISTED:
        return None
    return _in_order(kernels, table, below, tally, count)


def held(hash: Permutation, table: Float32[Tensor, "rows cols"]) -> Float32[Tensor, " cells"]:
    """The cells that hold coordinates."""
    return table[0, : min(hash.width * hash.block, hash.dim)]


def kth_largest(
    kernels: CellKernels, row: Float32[Tensor, " cells"], k: int
) -> Float32[Tensor, " 1"]:
    """The k-th largest |estimate|, given how many coordinates share each cell."""
    # So many cells hold k coordinates, even if none has one of the last group.
    enough = min(-(-k // max(kernels.hash.groups - 1, 1)), len(row))
    if row.is_cuda and len(row) <= SORTED_CELLS:
        largest, cells = (part[:enough] for part in row.abs().sort(descending=True))
    else:
        largest, cells = row.abs().topk(enough)
    reached = kernels.loads(cells).cumsum(dim=0)
    return largest[(reached < k).sum(dim=0, keepdim=True)]


def _in_order(
    kernels: CellKernels,
    table: Float32[Tensor, "rows cols"],
    threshold: Float32[Tensor, " 1"],
    tally: Int64[Tensor, " 2"],
    count: int,
) -> Found:
    listed = kernels.list_largest(held(kernels.hash, table), threshold, tally, count)
    indices = listed.sort().values.long()
    return indices, kernels.query(table, indices)
