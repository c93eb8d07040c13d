"""What a method wants to send, and what is sent of it.

Where weights are quantised, the server cannot send just anything: a method says what it wants to
subtract from the weights, a `Deliver` answers with what is subtracted, and the method keeps the
rest in its error: wanted = sent + kept. Grids (fetchsgd.server.grids) do the delivering.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float32, Int32
from torch import Tensor

from fetchsgd.vector import SparseVector

Update = SparseVector | Float32[Tensor, " dim"]


@dataclass(frozen=True)
class Delivered:
    """What is sent: weights -= update. Computed once, and handed on as it is.

    landed: the weights after that, at the coordinates of the update, where the grid has rounded
        them. steps: the update in whole steps, on a grid of steps.
    """

    update: Update
    landed: Float32[Tensor, " n"] | None = None
    steps: Int32[Tensor, " n"] | None = None

    @property
    def sparse(self) -> SparseVector:
        """The update of a method that wanted a sparse one."""
        assert isinstance(self.update, SparseVector)
        return self.update

    @property
    def dense(self) -> Float32[Tensor, " dim"]:
        assert isinstance(self.update, Tensor)
        return self.update


class Deliver(Protocol):
    """From what is wanted to what is sent. `exact`: these are always the same."""

    @property
    def exact(self) -> bool: ...

    def __call__(self, wanted: Update) -> Delivered: ...


@dataclass(frozen=True)
class Identity:
    """Sends what is wanted: weights may be any floats."""

    exact: bool = True

    def __call__(self, wanted: Update) -> Delivered:
        return Delivered(wanted)


IDENTITY = Identity()


def values_of(update: Update) -> Tensor:
    """The numbers of an update, without their places."""
    return update.values if isinstance(update, SparseVector) else update


def with_values(update: Update, values: Tensor) -> Update:
    """Other numbers in the same places."""
    if isinstance(update, SparseVector):
        return SparseVector.trusted(update.dim, update.indices, values)
    return values


def at(vector: Tensor, update: Update) -> Tensor:
    """The vector where the update is."""
    return vector[update.indices] if isinstance(update, SparseVector) else vector


def put(vector: Tensor, update: Update, values: Tensor) -> Tensor:
    """The vector with new values where the update is."""
    if isinstance(update, SparseVector):
        return vector.index_put((update.indices,), values)
    return values


def put_into(vector: Tensor, update: Update, values: Tensor) -> None:
    """The same in the memory of the vector."""
    if isinstance(update, SparseVector):
        vector[update.indices] = values
    else:
        vector.copy_(values)
