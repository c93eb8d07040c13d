"""Top k of one row on a CPU, from its cells (one_row.py)."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float32, Int32, Int64
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.sketch.kernels.cpu_selection import NumbaSelection
from fetchsgd.sketch.kernels.permuted import one_row
from fetchsgd.sketch.kernels.permuted.cpu_cells import count_loads, list_coordinates, tally_cells
from fetchsgd.sketch.permutation import Permutation


class NumbaOneRow(NumbaSelection):
    """What selects, by cells where there is one row, and else by walks."""

    hash: Permutation
    numbers: NDArray[np.uint32]  # of the hash, in the order of the loops

    def top_k(
        self, table: Float32[Tensor, "rows cols"], k: int
    ) -> tuple[Int64[Tensor, " k"], Float32[Tensor, " k"]]:
        return one_row.top_k(self, table, k) or super().top_k(table, k)

    def at_least(
        self, table: Float32[Tensor, "rows cols"], threshold: float
    ) -> tuple[Int64[Tensor, " found"], Float32[Tensor, " found"]]:
        return one_row.at_least(self, table, threshold) or super().at_least(table, threshold)

    def loads(self, cells: Int64[Tensor, " n"]) -> Int32[Tensor, " n"]:
        loads = np.empty(len(cells), dtype=np.int32)
        count_loads(loads, cells.numpy(), *self._cells())
        return torch.from_numpy(loads)

    def tally(
        self, row: Float32[Tensor, " cells"], threshold: Float32[Tensor, " 1"]
    ) -> Int64[Tensor, " 2"]:
        return torch.tensor(tally_cells(row.numpy(), threshold.numpy()[0], *self._cells()))

    def list_largest(
        self,
        row: Float32[Tensor, " cells"],
        threshold: Float32[Tensor, " 1"],
        tally: Int64[Tensor, " 2"],
        count: int,
    ) -> Tensor:
        above, tied = tally.tolist()
        whole = min((count - above) // max(tied, 1), self.hash.groups - 1)
        # One more: what turns out to be no coordinate is written too, and overwritten.
        listed, late = np.zeros(count + 1, dtype=np.int64), np.empty(tied + 1, dtype=np.int64)
        written, waiting = list_coordinates(
            listed, late, row.numpy(), threshold.numpy()[0], whole, *self._cells()
        )
        late, more = late[:waiting], min(count - written, waiting)
        if more:
            listed[written : written + more] = np.partition(late, more - 1)[:more]
        return torch.from_numpy(listed[:count])

    def _cells(self) -> tuple[object, ...]:
        """What the loops over cells need to know of the permutation, in their order."""
        h = self.hash
        return h.dim, h.first_group, h.groups, self.numbers, h.block
