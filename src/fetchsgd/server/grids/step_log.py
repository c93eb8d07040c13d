"""The last updates in whole steps: what a client that comes back has missed is a sum over them.

The log is bounded. It keeps at most `length` updates, and no more entries than MOST_ENTRIES times
the model's weights: a client that has missed more is sent all of n, which is as quick.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from jaxtyping import Int32, Int64
from torch import Tensor

MOST_ENTRIES = 4


@dataclass(frozen=True)
class Entry:
    """The update that made a version: n changed by `steps` at `indices`."""

    version: int
    indices: Int64[Tensor, " n"]
    steps: Int32[Tensor, " n"]  # zeros are allowed


class StepLog:
    """The updates that led from version `oldest` to the last one."""

    def __init__(self, dim: int, length: int) -> None:
        self.dim, self.length = dim, length
        self.entries: deque[Entry] = deque()
        self.oldest = 0
        self._size = 0

    def append(
        self, version: int, indices: Int64[Tensor, " n"], steps: Int32[Tensor, " n"]
    ) -> None:
        assert version == self.newest + 1
        self.entries.append(Entry(version, indices, steps))
        self._size += len(indices)
        while len(self.entries) > self.length or self._size > MOST_ENTRIES * self.dim:
            self._size -= len(self.entries[0].indices)
            self.oldest = self.entries.popleft().version

    @property
    def newest(self) -> int:
        return self.oldest + len(self.entries)

    def since(self, version: int) -> tuple[Int64[Tensor, " n"], Int32[Tensor, " n"]]:
        """By how much n has changed since then, where it has: coordinates and whole steps."""
        if not self.oldest <= version <= self.newest:
            raise ValueError(f"the log goes from {self.oldest} to {self.newest}, not to {version}")
        missed = [entry for entry in self.entries if entry.version > version]
        if not missed:
            nothing = torch.zeros(0, dtype=torch.int64)
            return nothing, nothing.int()
        together = torch.cat([entry.indices for entry in missed])
        indices, slots = torch.unique(together, return_inverse=True)
        total = torch.zeros(len(indices), dtype=torch.int32, device=indices.device)
        total.index_add_(0, slots, torch.cat([entry.steps for entry in missed]))
        changed = total != 0
        return indices[changed], total[changed]

    def tensors(self) -> dict[str, Tensor]:
        """Everything there is to save."""
        empty = torch.zeros(0, dtype=torch.int64)
        indices = [entry.indices.cpu() for entry in self.entries]
        return {
            "oldest": torch.tensor(self.oldest),
            "sizes": torch.tensor([len(part) for part in indices], dtype=torch.int64),
            "indices": torch.cat([empty, *indices]),
            "steps": torch.cat([empty.int(), *(entry.steps.cpu() for entry in self.entries)]),
        }

    def restore(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Continue from what `tensors` has returned."""
        self.entries.clear()
        self.oldest, self._size = int(tensors["oldest"]), 0
        sizes = tensors["sizes"].tolist()
        parts = zip(
            torch.split(tensors["indices"].to(device), sizes),
            torch.split(tensors["steps"].to(device), sizes),
            strict=True,
        )
        for indices, steps in parts:
            self.append(self.newest + 1, indices, steps)
