"""What clients send (Algorithm 1, lines 8 to 10): as payloads, as bytes, and as a sum.

A method's message says all there is to know about one kind of upload:

    compress, merge     a simulated cohort's messages as one sum, and what they cost
    write               one real client's message
    check, read, add    what the server accepts, and how it adds up
    remember, forget    what clients carry from round to round, where they do

Three kinds serve all methods of the paper: `DenseMessage`, a whole vector; `SketchMessage`, its
table; `ChosenMessage`, some coordinates that each client chooses. The first two are linear: the
message of the mean is the mean of the messages, so a simulated cohort needs one backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from fetchsgd.methods.largest import largest_mask, largest_sum
from fetchsgd.quantisers.base import Quantiser
from fetchsgd.sketch import CountSketch, Table
from fetchsgd.wire import (
    DenseVector,
    Floats,
    Header,
    MismatchError,
    Payload,
    SketchTable,
    SparseUpdate,
    Values,
)
from fetchsgd.wire.header import DENSE, SKETCH, SPARSE
from fetchsgd.wire.sizes import HEADER_BYTES, position_bytes

Memory = dict[str, Tensor]  # what clients remember: a row for each; names are the method's
Vectors = Tensor | list[Tensor]  # one vector, whole or in pieces; or many, as the rows of one


class Sum(NamedTuple):
    """What some clients of a cohort send, each times its share, summed up."""

    total: Tensor
    numbers: int | Tensor  # that are not zero, as the paper counts
    bytes: float | Tensor  # on the wire


class Dice(NamedTuple):
    """How clients round: a quantiser, and the key of the round's random numbers.

    round: for messages that depend on it, such as coordinates that all clients draw alike.
    """

    quantiser: Quantiser
    key: int
    round: int = 0


class Reply(NamedTuple):
    """The numbers of a message that was accepted, and where they belong if not everywhere."""

    numbers: Tensor
    counted: int  # of them, as the paper counts
    places: Int64[Tensor, " n"] | None = None


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

    def compress(self, vectors: Vectors) -> Tensor:
        """What is sent of a vector, before rounding; for linear messages."""
        ...

    def exact_cost(self, clients: int, quantiser: Quantiser) -> tuple[int, float]:
        """Numbers and bytes of so many clients, if sizes do not depend on values; where linear."""
        ...

    def merge(
        self,
        vectors: Float32[Tensor, "n dim"],
        shares: Float32[Tensor, " n"],
        clients: Int64[Tensor, " n"],
        dice: Dice,
        memory: Memory | None,
    ) -> Sum:
        """A simulated cohort's messages. `memory` has a row for every client of the task, and those
        of these clients are updated in place.
        """
        ...

    def first_memory(self, clients: int, device: torch.device) -> Memory | None:
        """What so many clients remember before their first round; None if they keep nothing."""
        ...

    def remember(self, vector: Float32[Tensor, " dim"], memory: Memory | None) -> Memory | None:
        """One client's memory with the vector of a round in it, and nothing sent of it."""
        ...

    def forget(self, memory: Memory, payload: Payload) -> Memory:
        """The same when the payload that was written of it has been merged."""
        ...

    def write(
        self,
        vector: Float32[Tensor, " dim"],
        memory: Memory | None,
        client: int,
        round: int,
        dice: Dice,
    ) -> Payload:
        """One client's message, of what `remember` has returned where it keeps a memory."""
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


@dataclass(frozen=True)
class _Stateless:
    """Clients that remember nothing."""

    def first_memory(self, clients: int, device: torch.device) -> Memory | None:  # noqa: ARG002
        return None

    def remember(self, vector: Tensor, memory: Memory | None) -> Memory | None:  # noqa: ARG002
        return None

    def forget(self, memory: Memory, payload: Payload) -> Memory:  # noqa: ARG002
        return memory


# What sees vectors and what they became, beside training (fetchsgd.diagnose).
Watcher = Callable[[Vectors, Tensor], None]


@dataclass(frozen=True)
class LinearMessage(_Stateless):
    """What dense vectors and sketches share."""

    watcher: Watcher | None = field(default=None, kw_only=True)

    linear: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def numbers(self) -> int:
        raise NotImplementedError

    def compress(self, vectors: Vectors) -> Tensor:
        raise NotImplementedError

    def payload(self, values: Values, round: int) -> Payload:
        raise NotImplementedError

    def merge(
        self,
        vectors: Float32[Tensor, "n dim"],
        shares: Float32[Tensor, " n"],
        clients: Int64[Tensor, " n"],
        dice: Dice,
        memory: Memory | None,  # noqa: ARG002
    ) -> Sum:
        n = len(vectors)
        if dice.quantiser.exact:
            # The sum of the messages is the message of the sum, of which there is only one.
            return Sum(self.compress(shares @ vectors), *self.exact_cost(n, dice.quantiser))
        rows = self.compress(vectors)
        rounded = dice.quantiser.round_rows(rows.flatten(1), dice.key, clients)
        total = rounded.weighted_sum(shares).view(rows.shape[1:])
        return Sum(total, rows.numel(), rounded.section_bytes().sum() + HEADER_BYTES * n)

    def exact_cost(self, clients: int, quantiser: Quantiser) -> tuple[int, float]:
        """Numbers and bytes of so many clients, where sizes do not depend on the values."""
        section = quantiser.fixed_bytes(self.numbers)
        assert section is not None
        return clients * self.numbers, float(clients * (HEADER_BYTES + section))

    def write(
        self,
        vector: Float32[Tensor, " dim"],
        memory: Memory | None,  # noqa: ARG002
        client: int,
        round: int,
        dice: Dice,
    ) -> Payload:
        cells = self.compress(vector[None]).flatten(1)
        return self.payload(round_one(cells, client, dice), round)

    def read(self, payload: Payload) -> Reply:
        return Reply(payload.values.floats().view(self.shape), self.numbers)

    def add(self, total: Float64[Tensor, ...], reply: Reply, weight: float) -> None:
        total.add_(reply.numbers.to(total.device, torch.float64), alpha=weight)

    def predicted_bytes(self, payload: Payload) -> float:
        return HEADER_BYTES + payload.values.section_bytes()

    def most_bytes(self, quantiser: Quantiser) -> int:
        return HEADER_BYTES + quantiser.most_bytes(self.numbers)


@dataclass(frozen=True)
class DenseMessage(LinearMessage):
    """A whole vector."""

    dim: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.dim,)

    @property
    def numbers(self) -> int:
        return self.dim

    def compress(self, vectors: Vectors) -> Tensor:
        sent = flatten(vectors)
        if self.watcher is not None:
            self.watcher(vectors, sent)
        return sent

    def payload(self, values: Values, round: int) -> Payload:
        return DenseVector(values, round)

    def check(self, header: Header, round: int, quantiser: Quantiser) -> None:
        refuse_unless(header.kind == DENSE and header.count == self.dim)
        check_round_and_values(header, round, quantiser)


@dataclass(frozen=True)
class SketchMessage(LinearMessage):
    """The table of a sketch of the vector."""

    sketch: CountSketch

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sketch.rows, self.sketch.cols

    @property
    def numbers(self) -> int:
        return self.sketch.num_cells

    def compress(self, vectors: Vectors) -> Table:
        sent = self.sketch.sketch(vectors)
        if self.watcher is not None:
            self.watcher(vectors, sent)
        return sent

    def payload(self, values: Values, round: int) -> Payload:
        s = self.sketch
        assert s.block is not None
        return SketchTable(s.dim, s.rows, s.cols, s.block, s.seed, values, round)

    def check(self, header: Header, round: int, quantiser: Quantiser) -> None:
        s = self.sketch
        shape = header.dim, header.rows, header.cols
        refuse_unless(header.kind == SKETCH and shape == (s.dim, s.rows, s.cols))
        if (header.block, header.seed) != (s.block, s.seed):
            raise MismatchError("seed", "the sketch has another hash: its seed or block differs")
        check_round_and_values(header, round, quantiser)


@dataclass(frozen=True)
class ChosenMessage:
    """The k largest coordinates of a client's own vector, or of what it remembers.

    error: clients keep what they did not send, and add it next time. momentum: of their own. What
    was sent is cleared from both (Lin et al. 2018).
    """

    dim: int
    k: int
    error: bool = False
    momentum: float = 0.0

    linear: ClassVar[bool] = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.dim,)

    @property
    def numbers(self) -> int:
        return self.k

    def compress(self, vectors: Vectors) -> Tensor:
        raise NotImplementedError("clients choose one by one: there is no message of a mean")

    def exact_cost(self, clients: int, quantiser: Quantiser) -> tuple[int, float]:
        raise NotImplementedError("what is sent depends on what clients choose")

    def merge(
        self,
        vectors: Float32[Tensor, "n dim"],
        shares: Float32[Tensor, " n"],
        clients: Int64[Tensor, " n"],
        dice: Dice,
        memory: Memory | None,
    ) -> Sum:
        fixed = dice.quantiser.fixed_bytes(self.k)
        places = self._place_bytes(vectors)
        if memory is None and dice.quantiser.exact:
            assert fixed is not None
            return Sum(*largest_sum(vectors, shares, self.k), places + len(vectors) * fixed)
        chosen, vectors = self._choose(vectors, clients, memory)
        if dice.quantiser.exact:
            assert fixed is not None
            sent = torch.where(chosen, vectors, 0)
            return Sum(shares @ sent, sent.count_nonzero(), places + len(vectors) * fixed)
        # Row after row, in order of index, as they are written; without waiting for their number.
        n, dim = vectors.shape
        at = torch.nonzero_static(chosen.flatten(), size=n * self.k).squeeze(1)
        values = vectors.flatten()[at].view(n, self.k)
        rounded = dice.quantiser.round_rows(values, dice.key, clients)
        # Rows that are summed in a fixed order: sums in place would differ from run to run.
        read = rounded.dequantise().flatten()
        sent = vectors.new_zeros(n * dim).scatter_(0, at, read).view(n, dim)
        return Sum(shares @ sent, values.count_nonzero(), places + rounded.section_bytes().sum())

    def _choose(
        self, vectors: Float32[Tensor, "n dim"], clients: Int64[Tensor, " n"], memory: Memory | None
    ) -> tuple[Tensor, Tensor]:
        """Which coordinates each client sends, and of which vector."""
        if memory is None:
            return largest_mask(vectors, self.k), vectors
        kept = self._remember({name: rows[clients] for name, rows in memory.items()}, vectors)
        chosen = largest_mask(kept["error"], self.k)
        for name, rows in kept.items():
            memory[name][clients] = rows.masked_fill(chosen, 0)
        return chosen, kept["error"]

    def _remember(self, memory: Memory, vectors: Tensor) -> Memory:
        momentum = self.momentum * memory["momentum"] + vectors if self.momentum else vectors
        error = memory["error"] + momentum if self.error else momentum
        return {"momentum": momentum, "error": error}

    def _place_bytes(self, vectors: Float32[Tensor, "n dim"]) -> Float64[Tensor, ""]:
        """Headers and positions of that many messages."""
        n, dim = vectors.shape
        count = torch.full((1,), self.k, device=vectors.device)
        return n * (HEADER_BYTES + position_bytes(dim, count)[0])

    def first_memory(self, clients: int, device: torch.device) -> Memory | None:
        if not self.error and not self.momentum:
            return None
        names = ("momentum", "error")
        return {name: torch.zeros(clients, self.dim, device=device) for name in names}

    def remember(self, vector: Float32[Tensor, " dim"], memory: Memory | None) -> Memory | None:
        return None if memory is None else self._remember(memory, vector[None])

    def forget(self, memory: Memory, payload: Payload) -> Memory:
        assert isinstance(payload, SparseUpdate)
        return {
            name: rows.index_fill(1, payload.indices.to(rows.device), 0)
            for name, rows in memory.items()
        }

    def write(
        self,
        vector: Float32[Tensor, " dim"],
        memory: Memory | None,
        client: int,
        round: int,
        dice: Dice,
    ) -> SparseUpdate:
        rows = vector[None] if memory is None else memory["error"]
        places = largest_mask(rows, self.k)[0].nonzero().squeeze(1)
        values = round_one(rows[:, places], client, dice)
        return SparseUpdate(self.dim, places, values, round)

    def check(self, header: Header, round: int, quantiser: Quantiser) -> None:
        fits = header.dim == self.dim and header.count <= self.k and header.since == 0
        refuse_unless(header.kind == SPARSE and fits)
        check_round_and_values(header, round, quantiser)

    def read(self, payload: Payload) -> Reply:
        assert isinstance(payload, SparseUpdate)
        numbers = payload.values.floats()
        # A number that few bits have rounded to zero was one that counts.
        is_rounded = not isinstance(payload.values, Floats)
        counted = len(numbers) if is_rounded else int(numbers.count_nonzero())
        return Reply(numbers, counted, payload.indices)

    def add(self, total: Float64[Tensor, ...], reply: Reply, weight: float) -> None:
        assert reply.places is not None
        numbers = reply.numbers.to(total.device, torch.float64)
        total.index_add_(0, reply.places.to(total.device), numbers, alpha=weight)

    def predicted_bytes(self, payload: Payload) -> float:
        assert isinstance(payload, SparseUpdate)
        places = position_bytes(self.dim, torch.tensor([len(payload.indices)]))[0]
        return HEADER_BYTES + payload.values.section_bytes() + float(places)

    def most_bytes(self, quantiser: Quantiser) -> int:
        # A gap takes at most as many bytes as its number of bits would fill, and its table some.
        return HEADER_BYTES + quantiser.most_bytes(self.k) + 8 * self.k + self.dim // 8 + 4096


def flatten(vectors: Vectors) -> Tensor:
    """Pieces of one vector as the vector."""
    return torch.cat([v.flatten() for v in vectors]) if isinstance(vectors, list) else vectors


def round_one(cells: Float32[Tensor, "1 count"], client: int, dice: Dice) -> Values:
    """One client's numbers, as it rounds them in simulation as well."""
    clients = torch.tensor([client], device=cells.device)
    return dice.quantiser.round_rows(cells, dice.key, clients).row(0)


def refuse_unless(fits: bool) -> None:
    if not fits:
        raise MismatchError("shape", "the payload is of another kind or size")


def check_round_and_values(header: Header, round: int, quantiser: Quantiser) -> None:
    """What every kind of message checks."""
    if header.round != round:
        raise MismatchError("round", f"the payload is of round {header.round}, asked was {round}")
    if not quantiser.reads(header.values):
        raise MismatchError("shape", f"the payload's numbers are not written by {quantiser}")
