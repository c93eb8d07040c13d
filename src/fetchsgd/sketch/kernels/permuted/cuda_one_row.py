"""Top k of one row on a GPU, from its cells, and without waiting for the device (one_row.py)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float32, Int32, Int64
from torch import Tensor

from fetchsgd.launch import launch
from fetchsgd.sketch.kernels.cuda_selection import TritonSelection
from fetchsgd.sketch.kernels.permuted import cell_programs, one_row
from fetchsgd.sketch.permutation import Permutation

# Cells or coordinates of one program.
SPAN = 512


class TritonOneRow(TritonSelection):
    """What selects, by cells where there is one row, and else by walks."""

    hash: Permutation
    numbers: tuple[int, ...]  # of the hash, in the order of the programs' signatures

    def top_k(
        self, table: Float32[Tensor, "rows cols"], k: int
    ) -> tuple[Int64[Tensor, " k"], Float32[Tensor, " k"]]:
        return one_row.top_k(self, table, k) or super().top_k(table, k)

    def at_least(
        self, table: Float32[Tensor, "rows cols"], threshold: float
    ) -> tuple[Int64[Tensor, " found"], Float32[Tensor, " found"]]:
        return one_row.at_least(self, table, threshold) or super().at_least(table, threshold)

    def _threshold_of_one_row(self, row: Float32[Tensor, " cols"], k: int) -> Float32[Tensor, " 1"]:
        return one_row.kth_largest(self, one_row.held(self.hash, row[None]), k)

    def loads(self, cells: Int64[Tensor, " n"]) -> Int32[Tensor, " n"]:
        loads = torch.empty(len(cells), dtype=torch.int32, device=self.device)
        self._over(cell_programs.count_loads, len(cells), loads, cells, len(cells), self.hash.dim)
        return loads

    def tally(
        self, row: Float32[Tensor, " cells"], threshold: Float32[Tensor, " 1"]
    ) -> Int64[Tensor, " 2"]:
        tally = torch.zeros(2, dtype=torch.int64, device=self.device)
        self._over(
            cell_programs.tally_cells, len(row), tally, row, len(row), threshold, self.hash.dim
        )
        return tally

    def list_largest(
        self,
        row: Float32[Tensor, " cells"],
        threshold: Float32[Tensor, " 1"],
        tally: Int64[Tensor, " 2"],
        count: int,
    ) -> Tensor:
        """Where possible in 32 bits: a sort takes launches for every byte."""
        dim, cells = self.hash.dim, len(row)
        width = torch.int32 if dim < 1 << 31 else torch.int64
        weights = torch.empty(2 * cells, dtype=width, device=self.device)
        self._over(
            cell_programs.weigh_cells, cells, weights, tally, count, row, cells, threshold, dim
        )
        ends = weights.cumsum(dim=0, dtype=width)
        # Zeros, not garbage: a table with NaN fills fewer entries, and indices must stay in range.
        listed = torch.zeros(count, dtype=width, device=self.device)
        self._over(
            cell_programs.list_coordinates, count,
            listed, tally, count, ends, cells, cells.bit_length(),
        )  # fmt: skip
        return listed

    def _over(self, program: Any, count: int, first: Tensor, *arguments: object) -> None:
        """Run one of the programs that have an entry or cell for each of so many."""
        launch(
            program, (-(-count // SPAN),),
            first, *arguments, *self.numbers, BLOCK=self.hash.block, SPAN=SPAN,
        )  # fmt: skip
