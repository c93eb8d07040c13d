"""Who holds which version of the model, and what that makes them send and fetch.

Bytes are counted as the paper counts them: 4 for every number that is not zero, and nothing for
saying which. A client that was last seen at round s fetches the coordinates that changed after s.
Instead of old weights we keep, for every coordinate, the round that changed it last, and how many
coordinates each round changed last: a round costs O(k), plus a few sums over the planned rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float32, Int32, Int64
from torch import Tensor

from fetchsgd.vector import SparseVector

BYTES_PER_NUMBER = 4
SPREAD = 1 << 22


@dataclass(frozen=True)
class Ledger:
    """Versions are counted from 0, the initial weights that every client can make by itself."""

    changed: Int32[Tensor, " dim"]  # the version in which a coordinate changed last
    changed_in: Int64[Tensor, " versions"]  # how many coordinates changed last in each version
    held: Int64[Tensor, " clients"]  # the version that each client holds
    uploaded: Int64[Tensor, ""]  # numbers, so far
    downloaded: Int64[Tensor, ""]

    @classmethod
    def new(cls, dim: int, clients: int, rounds: int, device: torch.device) -> Ledger:
        changed_in = torch.zeros(rounds + 1, dtype=torch.int64, device=device)
        changed_in[0] = dim
        zero = torch.zeros((), dtype=torch.int64, device=device)
        return cls(
            torch.zeros(dim, dtype=torch.int32, device=device),
            changed_in,
            torch.zeros(clients, dtype=torch.int64, device=device),
            zero,
            zero.clone(),
        )

    def download(self, cohort: Int64[Tensor, " cohort"], version: int) -> None:
        """The cohort fetches what it misses of a version (Algorithm 1, line 6)."""
        after = self.changed_in[: version + 1].flip(0).cumsum(0).flip(0)
        held = self.held[cohort]
        missed = torch.where(held < version, after[(held + 1).clamp(max=version)], 0)
        self.downloaded.add_(missed.sum())
        self.held[cohort] = version

    def upload(self, numbers: int | Int64[Tensor, ""]) -> None:
        """The cohort together sent that many numbers (line 8)."""
        self.uploaded.add_(numbers)

    def update(self, update: SparseVector | Float32[Tensor, " dim"], version: int) -> None:
        """The weights of a version differ from those before in the nonzeros of the update."""
        if isinstance(update, Tensor):
            touched = update != 0
            before = self.changed
            after = torch.where(touched, version, before)
        else:
            touched = update.values != 0
            before = self.changed[update.indices]
            after = torch.where(touched, version, before)
        # Shapes stay fixed whatever is zero, so that nothing waits for the device.
        self.changed_in.sub_(self._histogram(before, touched))
        self.changed_in[version] += touched.sum()
        if isinstance(update, Tensor):
            self.changed.copy_(after)
        else:
            self.changed[update.indices] = after.int()

    def _histogram(self, versions: Int32[Tensor, " n"], counted: Bool[Tensor, " n"]) -> Tensor:
        """How often each version occurs where `counted`.

        Most coordinates often share one version, and on a GPU additions to one place wait for each
        other: spread them over several.
        """
        lanes = max(min(SPREAD // len(self.changed_in), 1024), 1) if versions.is_cuda else 1
        lane = torch.arange(len(versions), device=versions.device) % lanes
        spread = torch.zeros(len(self.changed_in) * lanes, dtype=torch.int32, device=lane.device)
        spread.index_add_(0, versions.long() * lanes + lane, counted.int())
        return spread.view(-1, lanes).sum(dim=1)

    @property
    def bytes(self) -> tuple[int, int]:
        """Sent up and fetched down by all clients together."""
        up, down = torch.stack([self.uploaded, self.downloaded]).tolist()
        return BYTES_PER_NUMBER * up, BYTES_PER_NUMBER * down

    def tensors(self) -> dict[str, Tensor]:
        """Everything there is to save."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}
