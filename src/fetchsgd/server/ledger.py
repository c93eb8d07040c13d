"""Who holds which version of the model, and what that makes them send and fetch.

Bytes are counted twice. As the paper counts them: 4 for every number that is not zero, and nothing
for saying which. And as they go over the wire: positions, scales, headers and all (fetchsgd.wire).

A client that was last seen at round s fetches the coordinates that changed after s. Instead of old
weights we keep, for every coordinate, the round that changed it last, and how many coordinates each
round changed last: a round costs O(k), plus a few sums over the planned rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int32, Int64
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.methods.delivery import Delivered
from fetchsgd.server.grids import Downloads, GridWeights
from fetchsgd.wire import SparseUpdate

BYTES_PER_NUMBER = 4
SPREAD = 1 << 22


class Traffic(NamedTuple):
    """Bytes of all clients together."""

    up: int
    down: int


@dataclass(frozen=True)
class Ledger:
    """Versions are counted from 0, the initial weights that every client can make by itself."""

    changed: Int32[Tensor, " dim"]  # the version in which a coordinate changed last
    changed_in: Int64[Tensor, " versions"]  # how many coordinates changed last in each version
    held: Int64[Tensor, " clients"]  # the version that each client holds; on the host
    merged: Int64[Tensor, " clients"]  # the version that its last reply went into; on the host
    uploaded: Int64[Tensor, ""]  # numbers, so far
    downloaded: Int64[Tensor, ""]
    wire_up: Float64[Tensor, ""]  # bytes, so far
    wire_down: Float64[Tensor, ""]  # without what `downloads` has not been asked for yet
    downloads: Downloads

    @classmethod
    def new(
        cls, dim: int, clients: int, rounds: int, downloads: Downloads, device: torch.device
    ) -> Ledger:
        changed_in = torch.zeros(rounds + 1, dtype=torch.int64, device=device)
        changed_in[0] = dim
        zero = torch.zeros((), dtype=torch.int64, device=device)
        return cls(
            torch.zeros(dim, dtype=torch.int32, device=device),
            changed_in,
            torch.zeros(clients, dtype=torch.int64),
            torch.zeros(clients, dtype=torch.int64),
            zero,
            zero.clone(),
            zero.double(),
            zero.double(),
            downloads,
        )

    def for_rounds(self, rounds: int) -> Ledger:
        """The same with room for so many rounds, not fewer than there have been."""
        missing = rounds + 1 - len(self.changed_in)
        return replace(self, changed_in=torch.nn.functional.pad(self.changed_in, (0, missing)))

    def for_clients(self, clients: int) -> Ledger:
        """The same with room for so many clients, not fewer than there are."""
        missing = (0, clients - len(self.held))
        held, merged = (torch.nn.functional.pad(v, missing) for v in (self.held, self.merged))
        return replace(self, held=held, merged=merged)

    def download(self, cohort: NDArray[np.int64], version: int, place: GridWeights) -> None:
        """The cohort fetches what it misses of a version (Algorithm 1, line 6)."""
        until = self.changed_in[: version + 1].cumsum(0)
        members = torch.from_numpy(cohort)
        holds = self.held[members]
        missed = until[-1] - until[holds.to(until.device, non_blocking=True)]
        self.downloaded.add_(missed.sum())
        self.downloads.fetch(holds.tolist(), missed, place)
        self.held[members] = version

    def message(self, client: int, version: int, place: GridWeights) -> SparseUpdate:
        """What brings a client from the version that it holds to the last one."""
        return self.downloads.message(int(self.held[client]), version, place, self.changed)

    def upload(
        self,
        cohort: NDArray[np.int64],
        version: int,
        numbers: int | Int64[Tensor, ""],
        wire_bytes: float | Float64[Tensor, ""],
    ) -> None:
        """The cohort together sent that many numbers in that many bytes (line 8), for a version."""
        self.merged[torch.from_numpy(cohort)] = version
        self.uploaded.add_(numbers)
        self.wire_up.add_(wire_bytes)

    def update(self, sent: Delivered, version: int) -> None:
        """The weights of a version differ from those before in the nonzeros of what was sent."""
        self.downloads.update(sent, version)
        update = sent.update
        if isinstance(update, Tensor):
            touched = update != 0
            before, at = self.changed, torch.arange(len(update), device=update.device)
        else:
            touched = update.values != 0
            before, at = self.changed[update.indices], update.indices
        # Shapes stay fixed whatever is zero, so that nothing waits for the device.
        self.changed_in.sub_(self._histogram(before, touched, at))
        self.changed_in[version].add_(touched.sum())
        if isinstance(update, Tensor):
            self.changed.masked_fill_(touched, version)
        else:
            self.changed[at] = before.masked_fill_(touched, version)

    def _histogram(
        self, versions: Int32[Tensor, " n"], counted: Bool[Tensor, " n"], at: Int64[Tensor, " n"]
    ) -> Tensor:
        """How often each version occurs where `counted`, of coordinates that are `at` a place.

        Most coordinates often share one version, and on a GPU additions to one place wait for each
        other: spread them over several.
        """
        lanes = max(min(SPREAD // len(self.changed_in), 1024), 1) if versions.is_cuda else 1
        spread = torch.zeros(len(self.changed_in) * lanes, dtype=torch.int32, device=at.device)
        spread.index_add_(0, torch.add(at % lanes, versions, alpha=lanes), counted.int())
        return spread.view(-1, lanes).sum(dim=1)

    def _settle(self) -> None:
        self.wire_down.add_(self.downloads.take_bytes())

    @property
    def bytes(self) -> Traffic:
        """As the paper counts them."""
        up, down = torch.stack([self.uploaded, self.downloaded]).tolist()
        return Traffic(BYTES_PER_NUMBER * up, BYTES_PER_NUMBER * down)

    @property
    def wire_bytes(self) -> Traffic:
        """As they are sent."""
        self._settle()
        up, down = torch.stack([self.wire_up, self.wire_down]).tolist()
        return Traffic(round(up), round(down))

    def tensors(self) -> dict[str, Tensor]:
        """Everything there is to save."""
        self._settle()
        own = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "downloads"
        }
        return own | {f"downloads.{n}": part for n, part in self.downloads.tensors().items()}

    @classmethod
    def restored(
        cls, tensors: dict[str, Tensor], downloads: Downloads, device: torch.device
    ) -> Ledger:
        """From what `tensors` has returned; `downloads` is as it was at the beginning."""
        parts = {n: part for n, part in tensors.items() if not n.startswith("downloads.")}
        prefix = len("downloads.")
        kept = {n[prefix:]: part for n, part in tensors.items() if n.startswith("downloads.")}
        downloads.restore(kept, device)
        # Written since clients with memory of their own are told what was merged.
        parts.setdefault("merged", torch.zeros_like(parts["held"]))
        on_host = {name: parts.pop(name).cpu() for name in ("held", "merged")}
        return cls(
            **{n: part.to(device) for n, part in parts.items()}, **on_host, downloads=downloads
        )
