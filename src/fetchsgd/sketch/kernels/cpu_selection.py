"""Top k and all above a threshold on a CPU, by walks over the estimates, for either hash."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.sketch.kernels import selection
from fetchsgd.sketch.kernels.cpu_loops import sum_of_squares
from fetchsgd.sketch.kernels.selection import Collected
from fetchsgd.threads import run_in_order

# Indices, values, threshold, and the room for what is above and for ties.
Found = tuple[NDArray[np.int64], NDArray[np.float32], np.float32, int, int]


class NumbaSelection:
    """What selects; how a hash walks over its estimates is for its own class to say."""

    hash: Any
    samples: int

    def query(
        self, table: Float32[Tensor, "rows cols"], indices: Int64[Tensor, " n"]
    ) -> Float32[Tensor, " n"]:
        """Estimates of the given coordinates alone."""
        raise NotImplementedError

    def _chunks(self) -> list[range]:
        """Parts of a walk."""
        raise NotImplementedError

    def _coordinates(self, chunk: range) -> int:
        """The most coordinates that a part has."""
        raise NotImplementedError

    def _prepared(self, cells: NDArray[np.float32], threshold: np.float32) -> Any:  # noqa: ARG002
        """What a walk needs to know of a table."""
        return cells

    def _collect(self, found: Found, prepared: Any, chunk: range) -> tuple[int, int, int]:
        """Write what a part has to `found`; how many were kept, are above, and tie."""
        raise NotImplementedError

    def top_k(
        self, table: Float32[Tensor, "rows cols"], k: int
    ) -> tuple[Int64[Tensor, " k"], Float32[Tensor, " k"]]:
        return selection.top_k(self, table, self.hash.dim, k)

    def at_least(
        self, table: Float32[Tensor, "rows cols"], threshold: float
    ) -> tuple[Int64[Tensor, " found"], Float32[Tensor, " found"]]:
        return selection.at_least(self, table, threshold)

    def candidates(
        self, table: Float32[Tensor, "rows cols"], threshold: Float32[Tensor, " 1"], capacity: int
    ) -> tuple[Int64[Tensor, " found"], Float32[Tensor, " found"]] | None:
        found = self.collect(table, float(threshold), capacity)
        if found.above + found.equal > capacity:
            return None
        return found.indices, found.values

    def collect(
        self, table: Float32[Tensor, "rows cols"], threshold: float, size: int
    ) -> Collected:
        level = np.float32(threshold)
        prepared = self._prepared(table.numpy(), level)
        above = equal = 0
        found: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []

        def walk(chunk: range) -> tuple[NDArray[np.int64], NDArray[np.float32], int, int]:
            # What earlier chunks hold already bounds what this one can add to the result.
            room_above, room_equal = max(size - above, 0), max(size - equal, 0)
            room = min(room_above + room_equal, self._coordinates(chunk))
            indices = np.empty(room, dtype=np.int64)
            values = np.empty(room, dtype=np.float32)
            here = (indices, values, level, room_above, room_equal)
            kept, more, ties = self._collect(here, prepared, chunk)
            return indices[:kept].copy(), values[:kept].copy(), more, ties

        work = self.hash.rows * self.hash.dim
        for indices, values, more, ties in run_in_order(walk, self._chunks(), work):
            above += more
            equal += ties
            found.append((indices, values))
        return trim(found, threshold, size, above, equal)

    def row_energy(self, table: Float32[Tensor, "rows cols"]) -> Float64[Tensor, " rows"]:
        """Squared norm of each row."""
        rows = list(run_in_order(sum_of_squares, table.numpy(), table.numel()))
        return torch.tensor(rows, dtype=torch.float64)


def trim(
    found: list[tuple[NDArray[np.int64], NDArray[np.float32]]],
    threshold: float,
    size: int,
    above: int,
    equal: int,
) -> Collected:
    """Leave `size` entries: those above the threshold first, then ties, by lowest index."""
    indices = np.concatenate([part for part, _ in found])
    values = np.concatenate([part for _, part in found])
    tie = np.abs(values) == np.float32(threshold)
    keep = ~tie | (np.cumsum(tie) <= size - above)
    return Collected(
        torch.from_numpy(indices[keep][:size]), torch.from_numpy(values[keep][:size]), above, equal
    )
