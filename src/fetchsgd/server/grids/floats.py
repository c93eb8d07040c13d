"""Weights that are floats: of 32 bits, or rounded to 16 where they are touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float32, Float64, Int, Int64
from torch import Tensor

from fetchsgd.methods.delivery import (
    IDENTITY,
    Deliver,
    Delivered,
    Update,
    at,
    put,
    put_into,
    values_of,
    with_values,
)
from fetchsgd.server.grids.base import GridWeights, HeldVersion, check_dim
from fetchsgd.wire import Floats, SparseUpdate
from fetchsgd.wire.sizes import HEADER_BYTES, position_bytes

MOST_KEPT = 1 << 18  # numbers kept until sizes are worked out
PART = 1 << 28  # weights that are searched at once
AT_ONCE = 1 << 12  # of which a size takes some kilobytes


@dataclass(frozen=True)
class FloatGrid:
    """All floats of a type."""

    sizes: tuple[int, ...]
    origin: Float32[Tensor, " dim"]

    dtype: ClassVar[torch.dtype]

    def start(self, weights: Float32[Tensor, " dim"]) -> GridWeights:
        return GridWeights(weights, torch.zeros(0, dtype=torch.int32, device=weights.device))

    def deliver(self, place: GridWeights) -> Deliver:
        return RoundedFloats(place.weights, self.dtype)

    def move(self, place: GridWeights, sent: Delivered) -> GridWeights:
        after = self._moved(place, sent)
        return GridWeights(put(place.weights, sent.update, after), place.steps)

    def overwriting_move(self, place: GridWeights, sent: Delivered) -> GridWeights:
        """The same in the memory of the weights, which the origin must not share if it is used."""
        put_into(place.weights, sent.update, self._moved(place, sent))
        return place

    @staticmethod
    def _moved(place: GridWeights, sent: Delivered) -> Float32[Tensor, " n"]:
        before, moves = at(place.weights, sent.update), values_of(sent.update)
        after = before - moves if sent.landed is None else sent.landed
        return torch.where(moves == 0, before, after)

    def downloads(self) -> FloatDownloads:
        return FloatDownloads(len(self.origin), self.dtype)

    def fits(self, held: HeldVersion | None, update: SparseUpdate) -> bool:
        """New values may also overwrite newer ones."""
        if update.since == 0:
            return True
        return held is not None and update.since <= held.version <= update.round

    def receive(
        self, held: HeldVersion | None, update: SparseUpdate
    ) -> tuple[HeldVersion, Float32[Tensor, " dim"]]:
        check_dim(update, len(self.origin))
        if not isinstance(update.values, Floats):
            raise TypeError("an update of weights must hold floats")
        before = self.origin if update.since == 0 or held is None else held.vector
        values = update.values.values.to(before.device, torch.float32)
        weights = before.index_put((update.indices.to(before.device),), values)
        return HeldVersion(update.round, weights), weights

    @property
    def held_dtype(self) -> torch.dtype:
        return torch.float32


@dataclass(frozen=True)
class Float32Grid(FloatGrid):
    """No restriction."""

    dtype: ClassVar[torch.dtype] = torch.float32

    def deliver(self, place: GridWeights) -> Deliver:  # noqa: ARG002
        return IDENTITY


@dataclass(frozen=True)
class Float16Grid(FloatGrid):
    """IEEE half precision.

    >>> grid = Float16Grid((2,), torch.tensor([1.0, 2.0]))
    >>> place = grid.start(grid.origin)
    >>> sent = grid.deliver(place)(torch.tensor([0.1, 0.0]))  # what comes nearest
    >>> grid.move(place, sent).weights
    tensor([0.8999, 2.0000])
    """

    dtype: ClassVar[torch.dtype] = torch.float16


@dataclass(frozen=True)
class BFloat16Grid(FloatGrid):
    """The upper half of float32."""

    dtype: ClassVar[torch.dtype] = torch.bfloat16


@dataclass(frozen=True)
class RoundedFloats:
    """Delivers so that weights that are touched become floats of the type."""

    weights: Float32[Tensor, " dim"]
    dtype: torch.dtype

    exact: ClassVar[bool] = False

    def __call__(self, wanted: Update) -> Delivered:
        before, moves = at(self.weights, wanted), values_of(wanted)
        after = (before - moves).to(self.dtype).float()
        # What is not wanted at all stays where it is, off the grid if need be.
        after = torch.where(moves == 0, before, after)
        return Delivered(with_values(wanted, before - after), landed=after)


class FloatDownloads:
    """Clients fetch the values of what has changed."""

    def __init__(self, dim: int, dtype: torch.dtype) -> None:
        self.dim, self.dtype = dim, dtype
        # The sizes follow from these in some 160 small steps, so many rounds take them together.
        self.missed: list[Int64[Tensor, " n"]] = []
        self.fetched: list[Float64[Tensor, ""]] = []

    def update(self, sent: Delivered, version: int) -> None:
        """Nothing to remember: the ledger knows what changed when."""

    def fetch(
        self,
        held: list[int],  # noqa: ARG002
        missed: Int64[Tensor, " n"],
        place: GridWeights,  # noqa: ARG002
    ) -> None:
        self.missed.append(missed)
        if sum(map(len, self.missed)) > MOST_KEPT:
            self._add_sizes()

    def _add_sizes(self) -> None:
        """What clients of a round have missed depends on their versions alone: few numbers."""
        missed, clients = torch.unique(torch.cat(self.missed), return_counts=True)
        self.missed.clear()
        sizes = [position_bytes(self.dim, part) for part in missed.split(AT_ONCE)]
        sections = torch.cat(sizes) + self.dtype.itemsize * missed
        self.fetched.append((sections + HEADER_BYTES) @ clients.double())

    def take_bytes(self) -> Float64[Tensor, ""] | float:
        if self.missed:
            self._add_sizes()
        if not self.fetched:
            return 0.0
        total = torch.stack(self.fetched).sum()
        self.fetched.clear()
        return total

    def message(
        self, held: int, version: int, place: GridWeights, changed: Int[Tensor, " dim"]
    ) -> SparseUpdate:
        indices = where_above(changed, held)
        values = Floats(place.weights[indices].to(self.dtype))
        return SparseUpdate(self.dim, indices, values, version, held)

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def restore(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Nothing was saved."""


def where_above(changed: Int[Tensor, " dim"], version: int) -> Int64[Tensor, " n"]:
    """The coordinates that changed after a version; part by part, since torch's own search is for
    fewer than 2^31 on some devices.
    """
    found = [
        (changed[first : first + PART] > version).nonzero().squeeze(1) + first
        for first in range(0, len(changed), PART)
    ]
    return torch.cat(found)
