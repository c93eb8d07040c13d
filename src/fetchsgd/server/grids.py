"""Where weights may lie, so that changes take few bits on the way down.

    float32             anywhere; a client fetches the new values of what changed
    float16, bfloat16   a weight that is touched is rounded to 16 bits, and fetched in 16 bits
    steps               every weight is w0 + n step, n whole; a client fetches sums of whole steps

A method says what it wants to send, the grid what is really sent, and the method keeps the rest in
its error: given = sent + kept. Clients make w0 from the shared seed, and end up with the server's
weights to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float32, Int32, Int64
from torch import Tensor

from fetchsgd.vector import FlatModel, SparseVector

Update = SparseVector | Float32[Tensor, " dim"]
Deliver = Callable[[Update], Update]  # what a method wants to send -> what is sent

GRIDS = ("float32", "float16", "bfloat16", "steps")


def exactly(wanted: Update) -> Update:
    """What a grid without gaps sends."""
    return wanted


@dataclass(frozen=True)
class Position:
    """A model on a grid. `steps` is n, for grids of whole steps, and else has no elements."""

    weights: Float32[Tensor, " dim"]
    steps: Int32[Tensor, " n"]


class Grid(Protocol):
    """Where weights may lie."""

    def start(self, weights: Float32[Tensor, " dim"]) -> Position: ...

    def deliver(self, position: Position) -> Deliver:
        """From that position: what is sent for what is wanted."""
        ...

    def move(self, position: Position, sent: Update) -> Position:
        """Subtract what `deliver` has chosen (Algorithm 1, line 15)."""
        ...


@dataclass(frozen=True)
class FloatGrid:
    """All floats of a type, of which float32 is no restriction."""

    dtype: torch.dtype = torch.float32

    def start(self, weights: Float32[Tensor, " dim"]) -> Position:
        return Position(weights, torch.zeros(0, dtype=torch.int32, device=weights.device))

    def deliver(self, position: Position) -> Deliver:
        if self.dtype == torch.float32:
            return exactly

        def to_grid(wanted: Update) -> Update:
            before = at(position.weights, wanted)
            after = self._rounded(before - values_of(wanted))
            # What is not wanted at all stays where it is, off the grid if need be.
            return with_values(wanted, torch.where(values_of(wanted) == 0, 0, before - after))

        return to_grid

    def move(self, position: Position, sent: Update) -> Position:
        before = at(position.weights, sent)
        after = self._rounded(before - values_of(sent))
        after = torch.where(values_of(sent) == 0, before, after)
        return Position(put(position.weights, sent, after), position.steps)

    def _rounded(self, values: Tensor) -> Tensor:
        return values if self.dtype == torch.float32 else values.to(self.dtype).float()


@dataclass(frozen=True)
class StepGrid:
    """w0 + n step, with a step for each tensor of the model."""

    origin: Float32[Tensor, " dim"]  # w0
    tensor_ends: Int64[Tensor, " tensors"]
    tensor_steps: Float32[Tensor, " tensors"]

    @classmethod
    def of(cls, model: FlatModel, origin: Float32[Tensor, " dim"], fraction: float) -> StepGrid:
        """Steps are a fraction of the standard deviation of a tensor's initial weights.

        A tensor whose weights all start equal, such as a bias of zeros, takes the others' mean.
        """
        spread = torch.stack([part.std(correction=0) for part in model.views(origin)])
        varied = spread > 0
        usual = spread.sum() / varied.sum() if bool(varied.any()) else spread.new_ones(())
        ends = torch.tensor(model.sizes, device=origin.device).cumsum(0)
        return cls(origin, ends, fraction * torch.where(varied, spread, usual))

    def start(self, weights: Float32[Tensor, " dim"]) -> Position:
        steps = torch.zeros(len(weights), dtype=torch.int32, device=weights.device)
        return Position(weights, steps)

    def deliver(self, position: Position) -> Deliver:  # noqa: ARG002
        def to_grid(wanted: Update) -> Update:
            step = self._step_at(wanted)
            return with_values(wanted, (values_of(wanted) / step).round() * step)

        return to_grid

    def whole(self, sent: Update) -> Int32[Tensor, " n"]:
        """The whole steps of what is sent."""
        return (values_of(sent) / self._step_at(sent)).round().int()

    def move(self, position: Position, sent: Update) -> Position:
        steps = put(position.steps, sent, at(position.steps, sent) - self.whole(sent))
        moved = self.weights_of(at(steps, sent), at(self.origin, sent), self._step_at(sent))
        return Position(put(position.weights, sent, moved), steps)

    @staticmethod
    def weights_of(steps: Int32[Tensor, " n"], origin: Tensor, step: Tensor) -> Tensor:
        """Two operations, never a fused one: clients on any device get the same bits."""
        distance = steps.float() * step
        return origin + distance

    def weights_at(self, steps: Int32[Tensor, " dim"]) -> Float32[Tensor, " dim"]:
        """All weights from all n: what a client makes of what it has fetched."""
        return self.weights_of(steps, self.origin, self._step_at(self.origin))

    def _step_at(self, update: Update) -> Tensor:
        if isinstance(update, SparseVector):
            tensor = torch.bucketize(update.indices, self.tensor_ends, right=True)
            return self.tensor_steps[tensor]
        sizes = self.tensor_ends.diff(prepend=self.tensor_ends.new_zeros(1))
        return self.tensor_steps.repeat_interleave(sizes, output_size=len(self.origin))


def make_grid(
    name: str, model: FlatModel, origin: Float32[Tensor, " dim"], fraction: float
) -> Grid:
    """One of GRIDS."""
    if name == "steps":
        return StepGrid.of(model, origin, fraction)
    return FloatGrid(getattr(torch, name))


def at(vector: Tensor, update: Update) -> Tensor:
    """The vector where the update is."""
    return vector[update.indices] if isinstance(update, SparseVector) else vector


def put(vector: Tensor, update: Update, values: Tensor) -> Tensor:
    """The vector with new values where the update is."""
    if isinstance(update, SparseVector):
        return vector.index_put((update.indices,), values)
    return values


def values_of(update: Update) -> Tensor:
    return update.values if isinstance(update, SparseVector) else update


def with_values(update: Update, values: Tensor) -> Update:
    if isinstance(update, SparseVector):
        return SparseVector.trusted(update.dim, update.indices, values)
    return values
