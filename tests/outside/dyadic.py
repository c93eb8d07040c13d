"""A grid in a file of its own: weights are w0 + n step, n of 16 bits, and the step a power of two.

Unlike our own grid of steps, a client fetches the new n of what changed, and not a sum of steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fetchsgd.methods.delivery import Deliver, Delivered, Update, at, put, values_of, with_values
from fetchsgd.server.grids import GridWeights, HeldVersion
from fetchsgd.server.grids.base import check_dim
from fetchsgd.wire import Integers, SparseUpdate, encode

MOST = 2**15 - 1


@dataclass(frozen=True)
class Dyadic:
    """One step for all weights."""

    sizes: tuple[int, ...]
    origin: Tensor
    step: float = 2**-10

    def __post_init__(self) -> None:
        if not 0 < self.step < math.inf or math.frexp(self.step)[0] != 0.5:
            raise ValueError(f"download.step must be a power of two, got {self.step}")

    def start(self, weights: Tensor) -> GridWeights:
        return GridWeights(weights, torch.zeros_like(weights, dtype=torch.int32))

    def deliver(self, place: GridWeights) -> Deliver:
        return WholeSteps(place, self.step)

    def move(self, place: GridWeights, sent: Delivered) -> GridWeights:
        steps = put(place.steps, sent.update, at(place.steps, sent.update) - sent.steps)
        return GridWeights(self.weights_at(steps), steps)

    def weights_at(self, steps: Tensor) -> Tensor:
        return self.origin + steps.float() * self.step

    def downloads(self) -> DyadicDownloads:
        return DyadicDownloads(torch.zeros_like(self.origin, dtype=torch.int32))

    def fits(self, held: HeldVersion | None, update: SparseUpdate) -> bool:
        if update.since == 0:
            return True
        return held is not None and update.since <= held.version <= update.round

    def receive(self, held: HeldVersion | None, update: SparseUpdate) -> tuple[HeldVersion, Tensor]:
        check_dim(update, len(self.origin))
        if not isinstance(update.values, Integers):
            raise TypeError("an update of this grid must hold integers")
        device = self.origin.device
        first = torch.zeros(len(self.origin), dtype=torch.int16, device=device)
        before = first if update.since == 0 or held is None else held.vector
        numbers = from_nonzero(update.values.values)
        if len(numbers) and int(numbers.abs().max()) > MOST:
            raise ValueError(f"an update of this grid holds integers of at most {MOST}")
        changed = update.indices.to(device), numbers.to(device, torch.int16)
        steps = before.index_put(changed[:1], changed[1])
        return HeldVersion(update.round, steps), self.weights_at(steps)

    @property
    def held_dtype(self) -> torch.dtype:
        return torch.int16


@dataclass(frozen=True)
class WholeSteps:
    """As many as come nearest to what is wanted, and as 16 bits hold."""

    place: GridWeights
    step: float

    exact: ClassVar[bool] = False

    def __call__(self, wanted: Update) -> Delivered:
        before = at(self.place.steps, wanted)
        after = (before - (values_of(wanted) / self.step).round()).clamp(-MOST, MOST).int()
        steps = before - after
        return Delivered(with_values(wanted, steps.float() * self.step), steps=steps)


class DyadicDownloads:
    """Counts the bytes of messages by writing them."""

    def __init__(self, changed: Tensor) -> None:
        self.changed, self.version, self.bytes = changed, 0, 0

    def update(self, sent: Delivered, version: int) -> None:
        moved = values_of(sent.update) != 0
        before = at(self.changed, sent.update)
        self.changed = put(self.changed, sent.update, torch.where(moved, version, before))
        self.version = version

    def fetch(self, held: list[int], missed: Tensor, place: GridWeights) -> None:
        messages = [self.message(one, self.version, place, self.changed) for one in held]
        assert [len(message.indices) for message in messages] == missed.tolist()
        self.bytes += sum(len(encode(message)) for message in messages)

    def take_bytes(self) -> float:
        found, self.bytes = self.bytes, 0
        return float(found)

    def message(self, held: int, version: int, place: GridWeights, changed: Tensor) -> SparseUpdate:
        indices = (changed > held).nonzero().squeeze(1)
        numbers = Integers(as_nonzero(place.steps[indices].long()))
        return SparseUpdate(len(changed), indices, numbers, version, held)

    def tensors(self) -> dict[str, Tensor]:
        return {"changed": self.changed, "version": torch.tensor(self.version)}

    def restore(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        self.changed, self.version = tensors["changed"].to(device), int(tensors["version"])


def as_nonzero(numbers: Tensor) -> Tensor:
    """The wire has no integer 0 in a sparse update, and n may come back to it."""
    return torch.where(numbers >= 0, numbers + 1, numbers)


def from_nonzero(numbers: Tensor) -> Tensor:
    return torch.where(numbers > 0, numbers - 1, numbers)
