"""Messages down, and how many bytes they take without writing each of them.

In a simulation every client of every round fetches a message of its own. Its size follows from how
many coordinates changed (values are floats) or from how often each sum of steps occurs (values are
whole), since the coders of `fetchsgd.wire` come within a fraction of a percent of what these imply.
"""

from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fetchsgd.downloads.step_log import StepLog
from fetchsgd.downloads.walk import sum_histograms
from fetchsgd.grids import Position, StepGrid, Update
from fetchsgd.vector import SparseVector
from fetchsgd.wire import Floats, Integers, SparseUpdate
from fetchsgd.wire.sizes import HEADER_BYTES, integer_update_bytes, position_bytes


class Downloads(Protocol):
    """What it takes to bring clients to the last version."""

    def update(self, sent: Update, version: int) -> None:
        """A version differs from the one before by that."""
        ...

    def num_bytes(
        self, held: list[int], missed: Int64[Tensor, " n"], position: Position
    ) -> Float64[Tensor, ""]:
        """Of all messages to clients that hold these versions and miss so many coordinates."""
        ...

    def tensors(self) -> dict[str, Tensor]: ...

    def restore(self, tensors: dict[str, Tensor], device: torch.device) -> None: ...


class FloatDownloads:
    """Clients fetch the values of what has changed."""

    def __init__(self, dim: int, dtype: torch.dtype) -> None:
        self.dim, self.dtype = dim, dtype

    def update(self, sent: Update, version: int) -> None:
        """Nothing to remember: the ledger knows what changed when."""

    def num_bytes(
        self,
        held: list[int],
        missed: Int64[Tensor, " n"],
        position: Position,  # noqa: ARG002
    ) -> Float64[Tensor, ""]:
        sections = position_bytes(self.dim, missed) + self.dtype.itemsize * missed
        return sections.sum() + HEADER_BYTES * len(held)

    def message(
        self, changed: Int64[Tensor, " n"], position: Position, version: int, held: int
    ) -> SparseUpdate:
        """For a client that holds an older version, since which these coordinates have changed."""
        values = Floats(position.weights[changed].to(self.dtype))
        return SparseUpdate(self.dim, changed, values, version, held)

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def restore(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Nothing was saved."""


class StepDownloads:
    """Clients fetch the sums of whole steps that they missed."""

    def __init__(self, grid: StepGrid, length: int) -> None:
        self.grid = grid
        self.log = StepLog(len(grid.origin), length)

    def update(self, sent: Update, version: int) -> None:
        steps = -self.grid.whole(sent)  # weights -= sent
        if isinstance(sent, SparseVector):
            indices = sent.indices
        else:
            indices = steps.nonzero().squeeze(1)
            steps = steps[indices]
        self.log.append(version, indices, steps)

    def num_bytes(
        self,
        held: list[int],
        missed: Int64[Tensor, " n"],  # noqa: ARG002
        position: Position,
    ) -> Float64[Tensor, ""]:
        histograms = sum_histograms(self.log, held, position.steps)
        sections = integer_update_bytes(histograms, self.log.dim)
        return sections.sum() + HEADER_BYTES * len(held)

    def message(self, held: int, position: Position) -> SparseUpdate:
        """For a client that holds that version; one older than the log gets the whole n, from 0."""
        if held < self.log.oldest:
            held = 0
        if held == 0:
            changed = position.steps.nonzero().squeeze(1)
            steps = position.steps[changed]
        else:
            changed, steps = self.log.since(held)
        values = Integers(steps.long())
        return SparseUpdate(self.log.dim, changed, values, self.log.newest, held)

    def tensors(self) -> dict[str, Tensor]:
        return self.log.tensors()

    def restore(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        self.log.restore(tensors, device)
