"""What a grid decides: which values weights may take, and what a client is sent (line 15).

A grid of your own is named in the settings as `download.grid = "package.module:Class"`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float32, Float64, Int, Int32, Int64
from torch import Tensor

from fetchsgd.methods.delivery import Deliver, Delivered
from fetchsgd.wire import SparseUpdate


@dataclass(frozen=True)
class GridWeights:
    """The weights of a model on a grid. `steps` is n on a grid of steps, and empty on others."""

    weights: Float32[Tensor, " dim"]
    steps: Int32[Tensor, " n"]


@dataclass(frozen=True)
class HeldVersion:
    """A version, and the vector that a client keeps of it: weights, or n on a grid of steps."""

    version: int
    vector: Tensor


class Grid(Protocol):
    """Which values weights may take.

    A grid is a frozen dataclass. Its first two fields are `sizes`, those of the model's tensors,
    and `origin`, the initial weights w0; the others are its options, the settings `download.*`.
    """

    sizes: tuple[int, ...]
    origin: Float32[Tensor, " dim"]

    # --- on the server

    def start(self, weights: Float32[Tensor, " dim"]) -> GridWeights: ...

    def deliver(self, place: GridWeights) -> Deliver:
        """From weights at this place: what is sent for what is wanted."""
        ...

    def move(self, place: GridWeights, sent: Delivered) -> GridWeights:
        """Subtract what was delivered (Algorithm 1, line 15)."""
        ...

    def downloads(self) -> Downloads:
        """What the server keeps for clients that come back, before the first round."""
        ...

    # --- on a client

    def fits(self, held: HeldVersion | None, update: SparseUpdate) -> bool:
        """Whether the update can be applied to what a client holds."""
        ...

    def receive(
        self, held: HeldVersion | None, update: SparseUpdate
    ) -> tuple[HeldVersion, Float32[Tensor, " dim"]]:
        """What the client holds afterwards, and its weights (line 6). ValueError if it is not
        an update of this grid.
        """
        ...

    @property
    def held_dtype(self) -> torch.dtype:
        """Of the vector that a client keeps."""
        ...


class Downloads(Protocol):
    """What brings clients to the last version, and how many bytes that takes.

    In a simulation every client of every round fetches a message of its own. Its size follows from
    a few counts: the coders of `fetchsgd.wire` come within a fraction of a percent of what these
    imply, so no message is written.
    """

    def update(self, sent: Delivered, version: int) -> None:
        """The version differs from the one before by what was sent."""
        ...

    def fetch(self, held: list[int], missed: Int64[Tensor, " n"], place: GridWeights) -> None:
        """Clients that hold these versions, and miss this many coordinates, fetch the last one."""
        ...

    def take_bytes(self) -> Float64[Tensor, ""] | float:
        """The bytes of all messages since the last call."""
        ...

    def message(
        self, held: int, version: int, place: GridWeights, changed: Int[Tensor, " dim"]
    ) -> SparseUpdate:
        """From the version that a client holds to the last one, in one message.

        changed: for each coordinate the version that changed it last.
        """
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Everything there is to save."""
        ...

    def restore(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Continue from what `tensors` has returned."""
        ...


def check_dim(update: SparseUpdate, dim: int) -> None:
    """The sentence for an update of another model."""
    if update.dim != dim:
        raise ValueError(f"the update is for {update.dim} weights, the model has {dim}")
