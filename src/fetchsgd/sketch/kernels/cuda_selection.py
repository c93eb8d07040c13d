"""What is the same for either hash on a GPU: top k and all above a threshold, by walks."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from fetchsgd.launch import launch
from fetchsgd.sketch.kernels import selection
from fetchsgd.sketch.kernels.selection import Collected


class TritonSelection:
    """What selects; how a hash walks over its estimates is for its own class to say."""

    hash: Any
    device: torch.device
    samples: int
    programs: Any  # of the hash: count_reached, write_reached, append_reached

    def query(
        self, table: Float32[Tensor, "rows cols"], indices: Int64[Tensor, " n"]
    ) -> Float32[Tensor, " n"]:
        """Estimates of the given coordinates alone."""
        raise NotImplementedError

    def sketch(
        self, pieces: list[Float[Tensor, "n _"]], first: int = 0
    ) -> Float32[Tensor, "n rows cols"]:
        raise NotImplementedError

    def add(
        self, table: Float32[Tensor, "rows cols"], piece: Float[Tensor, "1 _"], first: int
    ) -> None:
        """Add the sketch of one piece to a table."""
        table += self.sketch([piece], first)[0]

    def _spans(self) -> tuple[int]:
        """Programs of a walk."""
        raise NotImplementedError

    def _walk(self, table: Float32[Tensor, "rows cols"]) -> tuple[object, ...]:
        """What every walk takes, in the order of the programs' signatures."""
        raise NotImplementedError

    def _threshold_of_one_row(self, row: Float32[Tensor, " cols"], k: int) -> Float32[Tensor, " 1"]:
        raise NotImplementedError

    def top_k(
        self, table: Float32[Tensor, "rows cols"], k: int
    ) -> tuple[Int64[Tensor, " k"], Float32[Tensor, " k"]]:
        if self.hash.rows > 1 or k == 0:
            return selection.top_k(self, table, self.hash.dim, k)
        # With one row the threshold follows from the cells, and nothing waits for the device.
        indices, values, _ = self._take(table, self._threshold_of_one_row(table[0], k), k)
        return indices, values

    def at_least(
        self, table: Float32[Tensor, "rows cols"], threshold: float
    ) -> tuple[Int64[Tensor, " found"], Float32[Tensor, " found"]]:
        return selection.at_least(self, table, threshold)

    def candidates(
        self, table: Float32[Tensor, "rows cols"], threshold: Float32[Tensor, " 1"], capacity: int
    ) -> tuple[Int64[Tensor, " found"], Float32[Tensor, " found"]] | None:
        # One walk instead of two: programs append in any order.
        indices = torch.empty(capacity, dtype=torch.int64, device=self.device)
        values = torch.empty(capacity, dtype=torch.float32, device=self.device)
        count = torch.zeros(1, dtype=torch.int64, device=self.device)
        launch(
            self.programs.append_reached, self._spans(),
            indices, values, count, capacity, threshold, *self._walk(table),
        )  # fmt: skip
        found = int(count)
        if found > capacity:
            return None
        return indices[:found], values[:found]

    def collect(
        self, table: Float32[Tensor, "rows cols"], threshold: float, size: int
    ) -> Collected:
        level = torch.full((1,), threshold, dtype=torch.float32, device=self.device)
        indices, values, seen = self._take(table, level, size)
        above, both = seen.tolist()
        kept = min(both, size)
        return Collected(indices[:kept], values[:kept], above, both - above)

    def _take(
        self, table: Float32[Tensor, "rows cols"], threshold: Float32[Tensor, " 1"], size: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`collect` with everything left on the device; entries past the last are zero.

        The third tensor says how many estimates are above the threshold, and how many reach it.
        """
        spans = self._spans()
        walk = self._walk(table)
        counts = torch.empty(2, spans[0], dtype=torch.int32, device=self.device)
        launch(self.programs.count_reached, spans, counts, threshold, spans[0], *walk)
        # One flat scan: torch's scan of two long rows is some ten times slower.
        ranks = torch.int32 if self.hash.dim < 1 << 31 else torch.int64
        ends = counts.view(-1).cumsum(dim=0, dtype=ranks)
        # Zeros, not garbage: a table with NaN fills fewer entries, and indices must stay in range.
        indices = torch.zeros(size, dtype=torch.int64, device=self.device)
        values = torch.zeros(size, dtype=torch.float32, device=self.device)
        if size:
            launch(
                self.programs.write_reached, spans,
                indices, values, size, counts, ends, threshold, spans[0], *walk,
            )  # fmt: skip
        return indices, values, ends[spans[0] - 1 :: spans[0]]
