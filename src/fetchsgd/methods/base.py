"""What a method decides: what a client sends, and what the server does with the mean of it.

    compress(vector) -> what a client sends; for linear methods also the mean of what all send
    compress_each(vectors, memory) -> the same where every client chooses for itself
    compressed_sum(vectors, shares) -> the sum of that, where nothing but the sum is asked for
    step(mean, state, rate, deliver) -> (update, state), the server's part; weights -= update

Where weights lie on a grid, `deliver` turns what a method wants to send into what is sent; what is
left of it stays in the error.

The local work that yields the vectors (one gradient, or the difference after local steps) is the
same for all methods and lives in client.py.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from fetchsgd.server.grids import Deliver, Update, exactly


class State(NamedTuple):
    """What the server carries from round to round; an unused part has no elements."""

    momentum: Tensor  # u, or its sketch S_u
    error: Tensor  # e, its sketch S_e, or the sketches S_e^i of a sliding window
    ages: Tensor = torch.zeros(0, dtype=torch.int64)  # of those, in rounds


class Memory(NamedTuple):
    """What clients carry where a method lets them: a row for each client of a cohort."""

    momentum: Float32[Tensor, "n dim"]
    error: Float32[Tensor, "n dim"]


class Method(Protocol):
    """One way to train. `linear`: compressing the mean is the mean of the compressed."""

    linear: ClassVar[bool]
    dim: int
    momentum: float

    @property
    def notes(self) -> list[str]:
        """What the user should know about these options; ones that cannot work are refused."""
        ...

    def init(self, device: torch.device) -> State: ...

    def compress(self, vectors: Tensor | list[Tensor]) -> Tensor:
        """One vector, whole or in pieces, compressed; or many, as the rows of one tensor."""
        ...

    @property
    def numbers_up(self) -> int:
        """How many numbers one client sends."""
        ...

    def step(
        self, mean: Tensor, state: State, rate: float, deliver: Deliver = exactly
    ) -> tuple[Update, State]: ...


@runtime_checkable
class LocalMethod(Protocol):
    """The part of a method that is not linear: clients compress on their own."""

    k: int  # how many coordinates each client sends
    keeps_memory: bool

    def compress_each(
        self, vectors: Float32[Tensor, "n dim"], memory: Memory | None
    ) -> tuple[Bool[Tensor, "n dim"], Float32[Tensor, "n dim"], Memory | None]:
        """Which k coordinates each client sends, of which vector, and what it then remembers."""
        ...

    def compressed_sum(
        self, vectors: Float32[Tensor, "n dim"], shares: Float32[Tensor, " n"]
    ) -> tuple[Float32[Tensor, " dim"], Int64[Tensor, ""]]:
        """What clients without memory send, each times its share, summed up; how many are not 0."""
        ...


def nothing(device: torch.device) -> Float32[Tensor, " 0"]:
    return torch.zeros(0, device=device)


def flatten(vectors: Tensor | list[Tensor]) -> Tensor:
    """Pieces of one vector as the vector."""
    return torch.cat([v.flatten() for v in vectors]) if isinstance(vectors, list) else vectors


def deliver_dense(
    wanted: Float32[Tensor, " dim"], error: Tensor, deliver: Deliver
) -> tuple[Float32[Tensor, " dim"], Tensor]:
    """For methods that keep no error of their own: what is sent, and what the grid leaves over."""
    if deliver is exactly:
        return wanted, error
    if len(error):
        wanted = wanted + error
    sent = deliver(wanted)
    assert isinstance(sent, Tensor)
    return sent, wanted - sent


def require_range(name: str, value: float, low: float, high: float) -> None:
    """The sentence for an option that is out of range."""
    if not low <= value <= high:
        raise ValueError(f"method.{name} must be from {low:g} to {high:g}, got {value}")
