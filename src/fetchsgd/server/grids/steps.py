"""Weights at whole steps: w0 + n step, with a step for each tensor of the model.

A client that was away fetches the exact sum of the whole steps that it missed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float32, Float64, Int, Int32, Int64
from torch import Tensor

from fetchsgd.methods.delivery import (
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
from fetchsgd.server.grids.step_log import StepLog
from fetchsgd.server.grids.walk import missed_statistics
from fetchsgd.vector import SparseVector
from fetchsgd.wire import Integers, SparseUpdate
from fetchsgd.wire.chunk_sizes import update_bytes
from fetchsgd.wire.chunk_statistics import Statistics
from fetchsgd.wire.sizes import HEADER_BYTES

STEP_BITS = 8  # of a step, without its exponent
MOST_UNIT = 2.0**20  # steps
MOST_KEPT = 1 << 24  # numbers kept until sizes are worked out


@dataclass(frozen=True)
class StepGrid:
    """A step is a fraction of the standard deviation of a tensor's initial weights.

    step: that fraction. log: rounds; clients that stayed away for longer fetch all weights.
    coarse: changes are multiples of as many steps as the smallest of them allows, a power of two.
        Where the k largest are sent, most are hardly larger than the smallest, so this costs next
        to nothing, and few different numbers take few bits. While changes are small, as in the
        first rounds, single steps are there.
    by_size: steps also go as the root of a tensor's number of weights. `step` is then the mean
        fraction of all weights. Each tensor matters about as much to the loss as any other, but
        only large ones cost many bytes, so these are rounded more coarsely (docs/theory.md).

    >>> grid = StepGrid((4,), torch.tensor([1.0, -1.0, 1.0, -1.0]), step=0.25)
    >>> place = grid.start(grid.origin)
    >>> sent = grid.deliver(place)(torch.tensor([0.3, 0.0, -0.6, 0.1]))
    >>> sent.steps.tolist(), grid.move(place, sent).weights.tolist()
    ([1, 0, -2, 0], [0.75, -1.0, 1.5, -1.0])
    """

    sizes: tuple[int, ...]
    origin: Float32[Tensor, " dim"]  # w0
    step: float = 0.125
    log: int = 256
    coarse: bool = True
    by_size: bool = False
    tensor_ends: Int64[Tensor, " tensors"] = field(init=False, repr=False, compare=False)
    tensor_steps: Float32[Tensor, " tensors"] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.step < math.inf:
            raise ValueError(f"download.step must be above 0, got {self.step}")
        if self.log < 1:
            raise ValueError(f"download.log must be at least 1, got {self.log}")
        device = self.origin.device
        ends = torch.tensor(self.sizes, device=device).cumsum(0)
        steps = step_sizes(self.origin, self.sizes, self.step, self.by_size)
        object.__setattr__(self, "tensor_ends", ends)
        object.__setattr__(self, "tensor_steps", steps.to(device))

    def start(self, weights: Float32[Tensor, " dim"]) -> GridWeights:
        steps = torch.zeros(len(weights), dtype=torch.int32, device=weights.device)
        return GridWeights(weights, steps)

    def deliver(self, place: GridWeights) -> Deliver:  # noqa: ARG002
        return WholeSteps(self)

    def move(self, place: GridWeights, sent: Delivered) -> GridWeights:
        assert sent.steps is not None
        steps = put(place.steps, sent.update, at(place.steps, sent.update) - sent.steps)
        moved = self.weights_of(
            at(steps, sent.update), at(self.origin, sent.update), self.step_at(sent.update)
        )
        return GridWeights(put(place.weights, sent.update, moved), steps)

    def overwriting_move(self, place: GridWeights, sent: Delivered) -> GridWeights:
        """The same in the memory of weights and steps; the origin must not share it."""
        assert sent.steps is not None
        steps = at(place.steps, sent.update) - sent.steps
        moved = self.weights_of(steps, at(self.origin, sent.update), self.step_at(sent.update))
        put_into(place.steps, sent.update, steps)
        put_into(place.weights, sent.update, moved)
        return place

    def downloads(self) -> StepDownloads:
        return StepDownloads(len(self.origin), self.log)

    def fits(self, held: HeldVersion | None, update: SparseUpdate) -> bool:
        """Steps must be added to just the version that they change."""
        return update.since == 0 or (held is not None and held.version == update.since)

    def receive(
        self, held: HeldVersion | None, update: SparseUpdate
    ) -> tuple[HeldVersion, Float32[Tensor, " dim"]]:
        check_dim(update, len(self.origin))
        if not isinstance(update.values, Integers):
            raise TypeError("an update of weights on a grid of steps must hold whole steps")
        device = self.origin.device
        start = torch.zeros(len(self.origin), dtype=torch.int32, device=device)
        steps = (start if update.since == 0 or held is None else held.vector).clone()
        steps[update.indices.to(device)] += update.values.values.to(device, torch.int32)
        return HeldVersion(update.round, steps), self.weights_at(steps)

    @property
    def held_dtype(self) -> torch.dtype:
        return torch.int32

    @staticmethod
    def weights_of(steps: Int32[Tensor, " n"], origin: Tensor, step: Tensor) -> Tensor:
        """Two operations, never a fused one: clients on any device get the same bits."""
        distance = steps.float() * step
        return origin + distance

    def weights_at(self, steps: Int32[Tensor, " dim"]) -> Float32[Tensor, " dim"]:
        """All weights from all n: what a client makes of what it has fetched."""
        return self.weights_of(steps, self.origin, self.step_at(self.origin))

    def step_at(self, update: Update) -> Tensor:
        """The step of each coordinate of an update."""
        if isinstance(update, SparseVector):
            at = update.indices
        else:
            # Not repeat_interleave: on a GPU few numbers repeated often keep few threads busy.
            at = torch.arange(len(self.origin), device=self.origin.device)
        return self.tensor_steps[torch.bucketize(at, self.tensor_ends, right=True)]


def step_sizes(
    origin: Float32[Tensor, " dim"], sizes: tuple[int, ...], fraction: float, by_size: bool = False
) -> Float32[Tensor, " tensors"]:
    """The same on every device: computed in float64 on the CPU, and rounded to a few bits.

    A tensor whose weights all start equal, such as a bias of zeros, takes the others' mean.

    >>> origin = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    >>> step_sizes(origin, (8, 2), 0.25), step_sizes(origin, (8, 2), 0.25, by_size=True)
    (tensor([0.2500, 0.2500]), tensor([0.2773, 0.1387]))
    """
    parts = torch.split(origin.cpu(), list(sizes))
    spread = torch.stack([part.double().std(correction=0) for part in parts])
    varied = spread > 0
    usual = spread.sum() / varied.sum() if bool(varied.any()) else spread.new_ones(())
    exact = fraction * torch.where(varied, spread, usual)
    if by_size:
        numbers = torch.tensor(sizes, dtype=torch.float64)
        exact = exact * (numbers.sqrt() * (numbers.sum() / (numbers * numbers.sqrt()).sum()))
    mantissa, exponent = torch.frexp(exact)
    rounded = torch.ldexp((mantissa * 2**STEP_BITS).round(), exponent - STEP_BITS)
    return rounded.float()


@dataclass(frozen=True)
class WholeSteps:
    """Delivers whole steps, as many as come nearest to what is wanted."""

    grid: StepGrid

    exact: ClassVar[bool] = False

    def __call__(self, wanted: Update) -> Delivered:
        step = self.grid.step_at(wanted)
        steps = values_of(wanted) / step
        if self.grid.coarse and isinstance(wanted, SparseVector) and len(steps):
            unit = coarsest(wanted.values, step)
            whole = (steps / unit).round() * unit
        else:
            whole = steps.round()
        return Delivered(with_values(wanted, whole * step), steps=whole.int())


def coarsest(values: Float32[Tensor, " n"], step: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    """For each value a power of two: that many of its steps are at most the smallest value."""
    size = values.abs()
    least = torch.where(size > 0, size, torch.inf).amin()
    _, exponent = torch.frexp((least / step).clamp(1, MOST_UNIT))
    return torch.ldexp(torch.ones_like(step), exponent - 1)


class StepDownloads:
    """Clients fetch the sums of whole steps that they missed."""

    def __init__(self, dim: int, length: int) -> None:
        self.log = StepLog(dim, length)
        self.fetched: list[Float64[Tensor, ""]] = []
        # Of the last rounds: statistics, and for how many clients each row stands.
        self.counted: list[tuple[Statistics, list[float]]] = []

    def update(self, sent: Delivered, version: int) -> None:
        assert sent.steps is not None
        steps = -sent.steps  # weights -= sent
        if isinstance(sent.update, SparseVector):
            indices = sent.update.indices
        else:
            indices = steps.nonzero().squeeze(1)
            steps = steps[indices]
        self.log.append(version, indices, steps)

    def fetch(
        self,
        held: list[int],
        missed: Int64[Tensor, " n"],  # noqa: ARG002
        place: GridWeights,
    ) -> None:
        clients, found = missed_statistics(self.log, held, place.steps)
        self.counted.append((found, clients))
        if sum(found.values.numel() for found, _ in self.counted) > MOST_KEPT:
            self._add_sizes()

    def _add_sizes(self) -> None:
        """For several rounds at once: sizes are many small operations, whatever they work on."""
        found = Statistics.cat([found for found, _ in self.counted])
        clients = torch.tensor([n for _, each in self.counted for n in each], dtype=torch.float64)
        sizes = HEADER_BYTES + update_bytes(found, self.log.dim)
        self.fetched.append(sizes @ clients.to(sizes.device, non_blocking=True))
        self.counted.clear()

    def take_bytes(self) -> Float64[Tensor, ""] | float:
        if self.counted:
            self._add_sizes()
        if not self.fetched:
            return 0.0
        total = torch.stack(self.fetched).sum()
        self.fetched.clear()
        return total

    def message(
        self,
        held: int,
        version: int,
        place: GridWeights,
        changed: Int[Tensor, " dim"],  # noqa: ARG002
    ) -> SparseUpdate:
        """A client whose version is older than the log gets the whole n, from version 0."""
        if held < self.log.oldest:
            held = 0
        if held == 0:
            indices = place.steps.nonzero().squeeze(1)
            steps = place.steps[indices]
        else:
            indices, steps = self.log.since(held)
        return SparseUpdate(self.log.dim, indices, Integers(steps.long()), version, held)

    def tensors(self) -> dict[str, Tensor]:
        return self.log.tensors()

    def restore(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        self.log.restore(tensors, device)
