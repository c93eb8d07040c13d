"""What clients send (Algorithm 1, lines 8 to 10): as payloads, as bytes, and as a sum.

A message is one kind of upload, with everything that is done with it:

    compress, merge     a simulated cohort's messages as one sum, and what they cost
    write               one real client's message
    check, read, add    what the server accepts, and how it adds up
    remember, forget    what clients carry from round to round, where they do

Three kinds serve all methods of the paper: `DenseMessage`, a whole vector; `SketchMessage`, its
table; `ChosenMessage`, some coordinates that each client chooses. The first two are linear: the
message of the mean is the mean of the messages, so a simulated cohort needs one backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from fetchsgd.privacy.clipping import Limit
from fetchsgd.quantisers.base import Quantiser
from fetchsgd.quantisers.levels import Quantised
from fetchsgd.wire import (
    Header,
    MismatchError,
    Payload,
    Values,
)

Memory = dict[str, Tensor]  # what clients remember: a row for each; names are the method's
Vectors = Tensor | list[Tensor]  # one vector, whole or in pieces; or many, as the rows of one


class Sum(NamedTuple):
    """What some clients of a cohort send, each times its share, summed up."""

    total: Tensor
    numbers: int | Tensor  # that are not zero, as the paper counts
    bytes: float | Tensor  # on the wire
    sizes: Float64[Tensor, " n"] | None = None  # of each client's numbers, where it matters
    within: Int64[Tensor, ""] | None = None  # how many messages were within the clip, if one is set
    clipped: int | Tensor = 0  # cells of sums modulo 2^b

    def plus(self, other: Sum) -> Sum:
        """With what some more clients send."""
        sizes = None
        if self.sizes is not None and other.sizes is not None:
            sizes = torch.cat([self.sizes, other.sizes])
        within = None
        if self.within is not None and other.within is not None:
            within = self.within + other.within
        return Sum(
            self.total + other.total, self.numbers + other.numbers, self.bytes + other.bytes,
            sizes, within, self.clipped + other.clipped,
        )  # fmt: skip


class Upload(NamedTuple):
    """How the clients of a round send: a quantiser, and the key of the round's random numbers.

    round: for messages that depend on it, such as coordinates that all clients draw alike.
    limit: of what a client sends, where privacy asks for one; for linear messages.
    """

    quantiser: Quantiser
    key: int
    round: int = 0
    limit: Limit | None = None


@dataclass(frozen=True, eq=False)
class Reply:
    """The numbers of a message that was accepted, and where they belong if not everywhere.

    held: floats, or levels as they came: as floats they would be far larger.
    """

    held: Tensor | Quantised
    counted: int  # of them, as the paper counts
    places: Int64[Tensor, " n"] | None = None
    size: float | None = None  # of the numbers, where it matters to the quantiser
    shape: tuple[int, ...] = (-1,)  # of levels

    @property
    def numbers(self) -> Tensor:
        """As floats."""
        return self.held if isinstance(self.held, Tensor) else self.held.floats().view(self.shape)


class Message(Protocol):
    """What one client sends in a round."""

    @property
    def linear(self) -> bool:
        """Whether the message of a mean is the mean of messages; then there is `compress`."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the sum, which the server's step takes."""
        ...

    @property
    def numbers(self) -> int:
        """How many numbers a client sends at most."""
        ...

    def compress(self, vectors: Vectors, round: int = 0) -> Tensor:
        """What is sent of a vector, before rounding; for linear messages."""
        ...

    def exact_cost(self, clients: int, quantiser: Quantiser) -> tuple[int, float]:
        """Where linear: numbers and bytes of this many clients, if no size depends on values."""
        ...

    def merge(
        self,
        vectors: Float32[Tensor, "n dim"],
        shares: Float32[Tensor, " n"],
        clients: Int64[Tensor, " n"],
        upload: Upload,
        memory: Memory | None,
    ) -> Sum:
        """A simulated cohort's messages. `memory` has a row for every client of the task, and those
        of these clients are updated in place. `vectors` may be overwritten after the call: nothing
        that is kept or returned shares their memory.
        """
        ...

    def first_memory(self, clients: int, device: torch.device) -> Memory | None:
        """What this many clients remember before their first round; None if they keep nothing."""
        ...

    def remember(self, vector: Float32[Tensor, " dim"], memory: Memory | None) -> Memory | None:
        """One client's memory with a round's vector added, before anything is sent of it."""
        ...

    def forget(self, memory: Memory, payload: Payload) -> Memory:
        """The memory after the payload that was written from it has been merged."""
        ...

    def write(
        self,
        vector: Float32[Tensor, " dim"],
        memory: Memory | None,
        client: int,
        round: int,
        upload: Upload,
    ) -> Payload:
        """One client's message. `memory` is what `remember` has returned, None without one."""
        ...

    def check(self, header: Header, round: int, quantiser: Quantiser) -> None:
        """Refuse what no honest client sends in this round, by its header alone: MismatchError."""
        ...

    def read(self, payload: Payload) -> Reply:
        """The numbers of a payload whose header has passed."""
        ...

    def add(self, total: Float64[Tensor, ...], reply: Reply, weight: float) -> None:
        """Add a reply to a sum, in place."""
        ...

    def predicted_bytes(self, payload: Payload) -> float:
        """The size of the message as a simulation counts it."""
        ...

    def most_bytes(self, quantiser: Quantiser) -> int:
        """No honest message is longer."""
        ...


def refuse_unless(fits: bool) -> None:
    """Refuse a payload that does not fit; the sentence says no more, since it may be hostile."""
    if not fits:
        raise MismatchError("shape", "the payload is of another kind or size")


def check_round_and_values(header: Header, round: int, quantiser: Quantiser) -> None:
    """What every kind of message checks."""
    if header.round != round:
        raise MismatchError("round", f"the payload is of round {header.round}, not {round}")
    if not quantiser.reads(header.values):
        raise MismatchError("shape", f"the payload's numbers are not written by {quantiser}")


def round_one(cells: Float32[Tensor, "1 count"], client: int, upload: Upload) -> Values:
    """One client's numbers, as it rounds them in simulation as well."""
    clients = torch.tensor([client], device=cells.device)
    return upload.quantiser.round_rows(cells, upload.key, clients).row(0)
