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

from fetchsgd.server.downloads.step_log import StepLog
from fetchsgd.server.downloads.walk import sum_histograms
from fetchsgd.server.grids import Position, StepGrid, Update
from fetchsgd.vector import SparseVector
from fetchsgd.wire import Floats, Integers, SparseUpdate
from fetchsgd.wire.sizes import HEADER_BYTES, integer_update_bytes, position_bytes


class Downloads(Protocol):
    """What it takes to bring clients to the last version."""

    def update(self, sent: Update, version: int) -> None:
        """A version differs from the one before by that."""
        ...

    def fetch(self, held: list[int], missed: Int64[Tensor, " n"], position: Position) -> None:
        """Clients that hold these versions, and miss so many coordinates, fetch the last one."""
        ...

    def take_bytes(self) -> Float64[Tensor, ""] | float:
        """Of all messages since the last time that this was asked."""
        ...

    def tensors(self) -> dict[str, Tensor]: ...

    def restore(self, tensors: dict[str, Tensor], device: torch.device) -> None: ...


class FloatDownloads:
    """Clients fetch the values of what has changed."""

    def __init__(self, dim: int, dtype: torch.dtype) -> None:
        self.dim, self.dtype = dim, dtype
        # The sizes follow from these in some 160 small steps, so many rounds take them together.
        self.missed: list[Int64[Tensor, " n"]] = []

    def update(self, sent: Update, version: int) -> None:
        """Nothing to remember: the ledger knows what changed when."""

    def fetch(
        self,
        held: list[int],  # noqa: ARG002
        missed: Int64[Tensor, " n"],
        position: Position,  # noqa: ARG002
    ) -> None:
        self.missed.append(missed)

    def take_bytes(self) -> Float64[Tensor, ""] | float:
        if not self.missed:
            return 0.0
        missed = torch.cat(self.missed)
        self.missed.clear()
        sections = position_bytes(self.dim, missed) + self.dtype.itemsize * missed
        return sections.sum() + HEADER_BYTES * len(missed)

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
        self.fetched: list[Float64[Tensor, ""]] = []

    def update(self, sent: Update, version: int) -> None:
        steps = -self.grid.whole(sent)  # weights -= sent
        if isinstance(sent, SparseVector):
            indices = sent.indices
        else:
            indices = steps.nonzero().squeeze(1)
            steps = steps[indices]
        self.log.append(version, indices, steps)

    def fetch(
        self,
        held: list[int],
        missed: Int64[Tensor, " n"],  # noqa: ARG002
        position: Position,
    ) -> None:
        histograms = sum_histograms(self.log, held, position.steps)
        sections = integer_update_bytes(histograms, self.log.dim)
        self.fetched.append(sections.sum() + HEADER_BYTES * len(held))

    def take_bytes(self) -> Float64[Tensor, ""] | float:
        if not self.fetched:
            return 0.0
        total = torch.stack(self.fetched).sum()
        self.fetched.clear()
        return total

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
