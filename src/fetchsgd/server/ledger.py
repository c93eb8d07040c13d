"""Who holds which version of the model, and what that makes them send and fetch.

Bytes are counted twice. As the paper counts them: 4 for every number that is not zero, and nothing
for saying which. And as they go over the wire: positions, scales, headers and all (fetchsgd.wire).

A client that was last seen at round s fetches the coordinates that changed after s. Instead of old
weights we keep, for every coordinate, the round that changed it last, and how many coordinates each
round changed last: a round costs O(k), plus a few sums over the planned rounds. Two bytes a weight
do for up to 32,767 rounds; of clients, only those are kept that have been seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int, Int64
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.methods.delivery import Delivered
from fetchsgd.server.client_versions import ClientVersions
from fetchsgd.server.grids import Downloads, GridWeights
from fetchsgd.server.ledger_loops import touch
from fetchsgd.wire import SparseUpdate

BYTES_PER_NUMBER = 4
SPREAD = 1 << 22
# Weights of a dense update that are counted at once.
SLICE = 1 << 24


class Traffic(NamedTuple):
    """Bytes of all clients together."""

    up: int
    down: int


@dataclass(frozen=True)
class Ledger:
    """Versions are counted from 0, the initial weights that every client can make by itself."""

    changed: Int[Tensor, " dim"]  # the version in which a coordinate changed last
    changed_in: Int64[Tensor, " versions"]  # how many coordinates changed last in each version
    held: ClientVersions  # the version that each client holds
    merged: ClientVersions  # the version that its last reply went into
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
            torch.zeros(dim, dtype=version_type(rounds), device=device),
            changed_in,
            ClientVersions(clients),
            ClientVersions(clients),
            zero,
            zero.clone(),
            zero.double(),
            zero.double(),
            downloads,
        )

    def for_rounds(self, rounds: int) -> Ledger:
        """The same with room for so many rounds, not fewer than there have been."""
        missing = rounds + 1 - len(self.changed_in)
        changed_in = torch.nn.functional.pad(self.changed_in, (0, missing))
        return replace(self, changed_in=changed_in, changed=self.changed.to(version_type(rounds)))

    def for_clients(self, clients: int) -> Ledger:
        """The same with room for so many clients, not fewer than there are."""
        held, merged = (versions.for_clients(clients) for versions in (self.held, self.merged))
        return replace(self, held=held, merged=merged)

    def download(self, cohort: NDArray[np.int64], version: int, place: GridWeights) -> None:
        """The cohort fetches what it misses of a version (Algorithm 1, line 6)."""
        until = self.changed_in[: version + 1].cumsum(0)
        holds = self.held.get(cohort)
        missed = until[-1] - until[torch.from_numpy(holds).to(until.device, non_blocking=True)]
        self.downloaded.add_(missed.sum())
        self.downloads.fetch(holds.tolist(), missed, place)
        self.held.put(cohort, version)

    def message(self, client: int, version: int, place: GridWeights) -> SparseUpdate:
        """What brings a client from the version that it holds to the last one."""
        return self.downloads.message(self.held[client], version, place, self.changed)

    def upload(
        self,
        cohort: NDArray[np.int64],
        version: int,
        numbers: int | Int64[Tensor, ""],
        wire_bytes: float | Float64[Tensor, ""],
    ) -> None:
        """The cohort together sent that many numbers in that many bytes (line 8), for a version."""
        self.merged.put(cohort, version)
        self.uploaded.add_(numbers)
        self.wire_up.add_(wire_bytes)

    def update(self, sent: Delivered, version: int) -> None:
        """The weights of a version differ from those before in the nonzeros of what was sent."""
        self.downloads.update(sent, version)
        update = sent.update
        if isinstance(update, Tensor):
            for start in range(0, len(update), SLICE):
                part = slice(start, start + SLICE)
                self._touch(self.changed[part], update[part], version)
        else:
            before, touched = self.changed[update.indices], update.values != 0
            self._count(before, touched, version)
            self.changed[update.indices] = before.masked_fill_(touched, version)

    def _touch(
        self, before: Int[Tensor, " n"], update: Float32[Tensor, " n"], version: int
    ) -> None:
        """Coordinates one after another, of which those are changed that the update moves."""
        if before.device.type == "cpu":
            counts = self.changed_in.numpy()
            touch(before.numpy(), update.contiguous().numpy(), version, counts)
        else:
            touched = update != 0
            self._count(before, touched, version)
            before.masked_fill_(touched, version)

    def _count(self, before: Int[Tensor, " n"], touched: Bool[Tensor, " n"], version: int) -> None:
        """Coordinates that were changed before, and are now where they are touched.

        Shapes stay fixed whatever is zero, so that nothing waits for the device. Most coordinates
        often share one version, and on a GPU additions to one place wait for each other: spread
        them over several.
        """
        device, versions = before.device, len(self.changed_in)
        lanes = max(min(SPREAD // versions, 1024), 1) if before.is_cuda else 1
        spread = torch.zeros(versions * lanes, dtype=torch.int32, device=device)
        places = before.long() if lanes == 1 else self._spread(before, lanes)
        spread.index_add_(0, places, touched.int())
        self.changed_in.sub_(spread.view(-1, lanes).sum(dim=1))
        self.changed_in[version].add_(touched.sum())

    @staticmethod
    def _spread(before: Int[Tensor, " n"], lanes: int) -> Int64[Tensor, " n"]:
        lane = torch.arange(len(before), device=before.device).remainder_(lanes)
        return lane.add_(before, alpha=lanes)

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
        found = {}
        for name in self.__dataclass_fields__:
            part = getattr(self, name)
            if isinstance(part, Tensor):
                found[name] = part
            elif isinstance(part, ClientVersions):
                found |= {f"{name}{n}": versions for n, versions in part.tensors().items()}
        return found | {f"downloads.{n}": part for n, part in self.downloads.tensors().items()}

    @classmethod
    def restored(
        cls, tensors: dict[str, Tensor], downloads: Downloads, device: torch.device
    ) -> Ledger:
        """From what `tensors` has returned; `downloads` is as it was at the beginning."""
        downloads.restore(_part(tensors, "downloads."), device)
        # Written since clients with memory of their own are told what was merged.
        merged = _part(tensors, "merged") or {"": torch.zeros_like(tensors["held"])}
        others = cls.__dataclass_fields__.keys() - {"held", "merged", "downloads"}
        own: dict[str, Any] = {name: tensors[name].to(device) for name in others}
        return cls(
            **own,
            held=ClientVersions.restored(_part(tensors, "held")),
            merged=ClientVersions.restored(merged),
            downloads=downloads,
        )


def _part(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {n[len(name) :]: part for n, part in tensors.items() if n.startswith(name)}


def version_type(rounds: int) -> torch.dtype:
    """The least that holds all versions of so many rounds: there is one of it for every weight."""
    return torch.int16 if rounds <= torch.iinfo(torch.int16).max else torch.int32
