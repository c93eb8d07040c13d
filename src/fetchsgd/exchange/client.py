"""A client's part in a round: apply the update, do the local work, say what the method sends.

A client that has lost what it held, or finds it damaged, asks for everything in one message.

Where clients remember (local top-k with error), what was sent leaves the memory only when the
server says that it was merged: replies may come too late, get lost or be rejected, and a request
may come twice. Until then the client keeps what it would have if nothing had been sent, and the
reply itself, which answers a repeated request. So given = merged + kept, whatever happens.

What a client's own optimiser remembers (local.state = "keep") goes with the steps that it has
taken, merged or not; a request that comes again is answered without taking them again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.clients.inner import INNER, Rows, first_rows
from fetchsgd.exchange.agreement import checksum
from fetchsgd.exchange.client_state import ClientState
from fetchsgd.exchange.messages import Answer, ResendRequest, Work
from fetchsgd.exchange.rejections import RejectedError
from fetchsgd.methods import Memory
from fetchsgd.runs.setup import Setup
from fetchsgd.server.grids import HeldVersion
from fetchsgd.wire import Payload, SparseUpdate, WireError, decode, encode

log = logging.getLogger("fetchsgd.client")

HELD, REPLY, ABOUT, MEMORY = "held", "reply.payload", "reply.about", "memory."
OPTIMISER = MEMORY + INNER


@dataclass(frozen=True)
class Computed:
    """A client's own vector: its gradient, or the difference after local steps (line 7).

    kept: what its optimiser remembers from then on, a single row.
    """

    vector: Float32[Tensor, " dim"]
    examples: int
    loss: float  # before any step
    kept: Rows | None = None


@dataclass(frozen=True)
class Done:
    """What a client sends, what the server wants to know of it, and what the client remembers.

    memory: with this round's vector in it, and nothing of it sent yet.
    """

    payload: Payload
    examples: int
    loss: float
    memory: Memory | None


# From the weights of the round, and what the client's optimiser remembers, to its vector.
Compute = Callable[[Float32[Tensor, " dim"], Rows | None], Computed]


def as_sent(
    setup: Setup,
    computed: Computed,
    client: int,
    round: int,
    memory: Memory | None,
    size: float = 0.0,
) -> Done:
    """The message of a vector (line 8), rounded by the same random numbers as in simulation."""
    message = setup.method.message
    memory = message.remember(computed.vector, memory)
    payload = message.write(computed.vector, memory, client, round, setup.upload(round, size))
    return Done(payload, computed.examples, computed.loss, memory)


@dataclass(frozen=True)
class Pending:
    """What a client has sent and does not know to be merged."""

    round: int
    examples: int
    loss: float
    payload: bytes

    @classmethod
    def of(cls, state: ClientState | None) -> Pending | None:
        if state is None or REPLY not in state.vectors or ABOUT not in state.vectors:
            return None
        round, examples, loss = state.vectors[ABOUT].tolist()
        return cls(int(round), int(examples), loss, state.vectors[REPLY].tobytes())

    def arrays(self) -> dict[str, NDArray[Any]]:
        about = np.array([self.round, self.examples, self.loss], np.float64)
        return {REPLY: np.frombuffer(self.payload, np.uint8), ABOUT: about}


@dataclass(frozen=True)
class Brought:
    """A client that is up to date: the weights, and what it keeps of them."""

    weights: Float32[Tensor, " dim"]
    state: ClientState


@dataclass(frozen=True)
class Participant:
    """One client of a run. Its state goes in and comes out; nothing of it is kept here."""

    setup: Setup
    number: int

    def answer(
        self, task: Work, compute: Compute, state: ClientState | None
    ) -> tuple[Answer | ResendRequest, ClientState | None]:
        """What the client replies, and what it keeps from then on.

        RejectedError for work that no server of this run sends.
        """
        own = of_this_run(task, state)
        pending = Pending.of(own)
        if pending is not None and pending.round == task.round:
            return self._answer(task, pending), state  # asked once more
        now = self.bring(task, state)
        if not isinstance(now, Brought):
            return now
        memory = self.memory(own, pending, task.merged)
        computed = compute(now.weights, self.optimiser(own))
        done = as_sent(self.setup, computed, self.number, task.round, memory, task.size)
        reply = Pending(task.round, done.examples, done.loss, encode(done.payload))
        arrays = _arrays(MEMORY, done.memory) | _arrays(OPTIMISER, computed.kept)
        if arrays:
            now.state.vectors.update(reply.arrays() | arrays)
        return self._answer(task, reply), now.state

    def bring(
        self, task: Work, state: ClientState | None
    ) -> Brought | tuple[ResendRequest, ClientState | None]:
        """The weights of the round; or, where the update does not fit, what to ask and to keep."""
        update = _update(task)
        own = of_this_run(task, state)
        held, grid = self.held(own), self.setup.grid
        if not grid.fits(held, update):
            return self._ask(task, 0 if held is None else held.version), state
        try:
            held, weights = grid.receive(held, update)
        except (ValueError, TypeError) as error:
            raise RejectedError("shape", str(error)) from error
        if checksum(weights) != task.checksum:
            if update.since == 0:
                raise RejectedError(
                    "settings", "weights made from the seed and a whole update are not the server's"
                )
            log.warning("the weights that this client held are not the server's: everything anew")
            return self._ask(task, 0), _without_version(own)
        kept = {HELD: held.vector.cpu().numpy()}
        return Brought(weights, ClientState(task.lineage, held.version, kept))

    def _answer(self, task: Work, reply: Pending) -> Answer:
        return Answer(
            task.digest, task.lineage, task.round, self.number, reply.examples, reply.loss,
            reply.payload,
        )  # fmt: skip

    def _ask(self, task: Work, held: int) -> ResendRequest:
        return ResendRequest(task.digest, task.lineage, task.round, self.number, held)

    def held(self, state: ClientState | None) -> HeldVersion | None:
        """The version that was kept, if it is of this model."""
        if state is None or HELD not in state.vectors:
            return None
        vector = self._tensor(state, HELD, (self.setup.model.dim,))
        if vector is None or vector.dtype != self.setup.grid.held_dtype:
            log.warning("what this client has kept is of another model: everything anew")
            return None
        return HeldVersion(state.version, vector)

    def memory(
        self, state: ClientState | None, pending: Pending | None, merged: int
    ) -> Memory | None:
        """What the client remembers, once it knows which version its last reply went into."""
        message = self.setup.method.message
        first = message.first_memory(1, self.setup.device)
        if first is None or state is None:
            return first
        whole = self._recalled(state, MEMORY, first)
        if whole is None:
            return first
        if pending is None or merged != pending.round + 1:
            return whole  # nothing of it has arrived
        return message.forget(whole, decode(pending.payload))

    def optimiser(self, state: ClientState | None) -> Rows | None:
        """What the client's optimiser remembers: nothing yet where it was lost."""
        first = first_rows(self.setup.config.local, 1, self.setup.model.dim, self.setup.device)
        if first is None or state is None:
            return first
        return self._recalled(state, OPTIMISER, first) or first

    def _recalled(self, state: ClientState, prefix: str, first: Memory) -> Memory | None:
        """All that was kept under these names; None if any of it is missing."""
        found = {n: self._tensor(state, prefix + n, part.shape) for n, part in first.items()}
        whole = {name: part for name, part in found.items() if part is not None}
        return whole if len(whole) == len(first) else None

    def _tensor(self, state: ClientState, name: str, shape: tuple[int, ...]) -> Tensor | None:
        array = state.vectors.get(name)
        if array is None or array.shape != tuple(shape):
            return None
        return torch.from_numpy(np.array(array)).to(self.setup.device)


def with_optimiser(state: ClientState, kept: Rows | None) -> ClientState:
    """The same with what the client's optimiser remembers."""
    return ClientState(state.lineage, state.version, state.vectors | _arrays(OPTIMISER, kept))


def _update(task: Work) -> SparseUpdate:
    try:
        update = decode(task.payload)
    except WireError as error:
        raise RejectedError("undecodable", str(error)) from error
    if not isinstance(update, SparseUpdate) or update.round != task.round:
        raise RejectedError("shape", "the server's payload is not an update to this round")
    return update


def of_this_run(task: Work, state: ClientState | None) -> ClientState | None:
    """The state of another run says nothing about this one."""
    return state if state is not None and state.lineage == task.lineage else None


def _without_version(state: ClientState | None) -> ClientState | None:
    """The weights are no good; what the client remembers of its gradients is."""
    if state is None:
        return None
    vectors = {name: part for name, part in state.vectors.items() if name != HELD}
    return ClientState(state.lineage, 0, vectors)


def _arrays(prefix: str, memory: Memory | None) -> dict[str, NDArray[Any]]:
    return {prefix + name: part.cpu().numpy() for name, part in (memory or {}).items()}
