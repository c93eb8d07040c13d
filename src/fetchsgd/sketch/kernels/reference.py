"""The sketch in plain torch: slow, short, on any device. The other kernels are tested against it.

Sums run in float64 and are rounded once, so that this is also the more exact answer.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Float32, Float64, Int32, Int64
from torch import Tensor

from fetchsgd.sketch.hashing import BlockHash
from fetchsgd.sketch.kernels.median import middle
from fetchsgd.sketch.kernels.pieces import SLICE, slices


def locate(
    placements: Int32[Tensor, " blocks"], indices: Int64[Tensor, " n"], block: int, cols: int
) -> tuple[Int64[Tensor, " n"], Float32[Tensor, " n"]]:
    """Bucket and sign of some coordinates in one row."""
    packed = placements[indices // block]
    buckets = ((packed >> 1) + indices % block) % cols
    signs = (1 - 2 * (packed & 1)).to(torch.float32)
    return buckets, signs


def touched(
    placements: Int32[Tensor, "rows blocks"],
    indices: Int64[Tensor, " k"],
    values: Float32[Tensor, " k"],
    block: int,
    cols: int,
) -> Bool[Tensor, "rows cols"]:
    """Which cells hold a coordinate whose value is not zero."""
    marks = torch.zeros(len(placements), cols + 1, dtype=torch.bool, device=values.device)
    for row, placed in zip(marks, placements, strict=True):
        buckets, _ = locate(placed, indices, block, cols)
        mark(row, buckets, values)
    return marks[:, :cols]


def mark(
    row: Bool[Tensor, " cells"], cells: Int64[Tensor, " k"], values: Float32[Tensor, " k"]
) -> None:
    """Set the cells of values that are not zero, in a row with one cell too many."""
    # Zeros mark that last one, so that all that is written is equal, in whatever order.
    row.index_fill_(0, torch.where(values != 0, cells, len(row) - 1), True)


def median_of_rows(values: Float32[Tensor, "rows n"]) -> Float32[Tensor, " n"]:
    """The middle of the rows' estimates, or the mean of the two middle ones."""
    lower, upper = middle(len(values))
    ordered = values.sort(dim=0).values
    if lower == upper:
        return ordered[lower]
    return 0.5 * ordered[lower] + 0.5 * ordered[upper]


class ReferenceKernels:
    """Every operation of the sketch, straight from its definition."""

    def __init__(self, hash: BlockHash, device: torch.device) -> None:
        self.hash = hash
        self.device = device
        self.placements = torch.from_numpy(hash.placements).to(device)

    def sketch(
        self, pieces: list[Float[Tensor, "n _"]], first: int = 0
    ) -> Float32[Tensor, "n rows cols"]:
        count = pieces[0].shape[0]
        tables = torch.zeros(
            count, self.hash.rows, self.hash.cols, dtype=torch.float64, device=self.device
        )
        for begin, part in slices(pieces, first):
            indices = torch.arange(begin, begin + part.shape[1], device=self.device)
            for row, (buckets, signs) in enumerate(self._located(indices)):
                self._accumulate(tables[:, row], buckets, part.double() * signs)
        return tables.to(torch.float32)

    def add(
        self, table: Float32[Tensor, "rows cols"], piece: Float[Tensor, "1 _"], first: int
    ) -> None:
        table += self.sketch([piece], first)[0]

    def scatter(
        self, indices: Int64[Tensor, " k"], values: Float32[Tensor, " k"]
    ) -> Float32[Tensor, "rows cols"]:
        table = torch.zeros(self.hash.rows, self.hash.cols, dtype=torch.float64, device=self.device)
        for row, (buckets, signs) in enumerate(self._located(indices)):
            self._accumulate(table[row : row + 1], buckets, (values.double() * signs)[None])
        return table.to(torch.float32)

    def touched(
        self, indices: Int64[Tensor, " k"], values: Float32[Tensor, " k"]
    ) -> Bool[Tensor, "rows cols"]:
        return touched(self.placements, indices, values, self.hash.block, self.hash.cols)

    def query(
        self, table: Float32[Tensor, "rows cols"], indices: Int64[Tensor, " n"]
    ) -> Float32[Tensor, " n"]:
        """Estimates of the given coordinates alone."""
        rows = [table[row][at] * signs for row, (at, signs) in enumerate(self._located(indices))]
        return median_of_rows(torch.stack(rows))

    def estimate(
        self, table: Float32[Tensor, "rows cols"], span: range | None = None
    ) -> Float32[Tensor, " n"]:
        span = range(self.hash.dim) if span is None else span
        out = torch.empty(len(span), dtype=torch.float32, device=self.device)
        for at in range(0, len(span), SLICE):
            part, first = out[at : at + SLICE], span.start + at
            part.copy_(
                self.query(table, torch.arange(first, first + len(part), device=self.device))
            )
        return out

    def top_k(
        self, table: Float32[Tensor, "rows cols"], k: int
    ) -> tuple[Int64[Tensor, " k"], Float32[Tensor, " k"]]:
        estimates = self.estimate(table)
        # A stable sort leaves equal magnitudes in order of their index: the tie rule.
        order = estimates.abs().sort(descending=True, stable=True).indices
        chosen = order[:k].sort().values
        return chosen, estimates[chosen]

    def at_least(
        self, table: Float32[Tensor, "rows cols"], threshold: float
    ) -> tuple[Int64[Tensor, " found"], Float32[Tensor, " found"]]:
        estimates = self.estimate(table)
        chosen = (estimates.abs() >= threshold).nonzero().squeeze(1)
        return chosen, estimates[chosen]

    def row_energy(self, table: Float32[Tensor, "rows cols"]) -> Float64[Tensor, " rows"]:
        """Squared norm of each row. Rows are summed alone, so no thread count changes the order."""
        if table.device.type == "cpu":
            squares = table.double().square().numpy()
            return torch.tensor([row.sum() for row in squares], dtype=torch.float64)
        return table.double().square().sum(dim=1)

    def _located(self, indices: Int64[Tensor, " n"]) -> Iterator[tuple[Tensor, Tensor]]:
        for row in range(self.hash.rows):
            yield locate(self.placements[row], indices, self.hash.block, self.hash.cols)

    @staticmethod
    def _accumulate(
        rows: Float64[Tensor, "n cols"],
        buckets: Int64[Tensor, " m"],
        values: Float64[Tensor, "n m"],
    ) -> None:
        """rows[:, buckets] += values, in an order that does not change from run to run."""
        # On CUDA index_add_ uses atomics, while index_put_ sorts first.
        for row, value in zip(rows, values, strict=True):
            if row.is_cuda:
                row.index_put_((buckets,), value, accumulate=True)
            else:
                row.index_add_(0, buckets, value)
