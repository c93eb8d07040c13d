"""A client's part in a round: apply the update, do the local work, say what the method sends.

A client that has lost what it held, or finds it damaged, asks for everything in one message.

Where clients remember (local top-k with error), what was sent leaves the memory only when the
server says that it was merged: replies may come too late, get lost or be rejected, and a request
may come twice. Until then the client keeps what it would have if nothing had been sent, and the
reply itself, which answers a repeated request. So given = merged + kept, whatever happens.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fetchsgd.errors import UserError
from fetchsgd.flower.agreement import checksum, digest
from fetchsgd.flower.client_state import Keeper, Kept
from fetchsgd.flower.messages import Answer, ResendRequest, Work
from fetchsgd.flower.settings import read_settings
from fetchsgd.flower.work import work
from fetchsgd.methods import Memory
from fetchsgd.runs.setup import Setup
from fetchsgd.server.grids import HeldVersion
from fetchsgd.wire import SparseUpdate, decode, encode

log = logging.getLogger("flwr.fetchsgd")

HELD, REPLY, ABOUT, MEMORY = "held", "reply.payload", "reply.about", "memory."


def take_part(
    task: Work,
    client: int,
    run_config: Mapping[str, Any],
    node_config: Mapping[str, Any],
    keeper: Keeper,
) -> Answer | ResendRequest:
    """Lines 6 to 8 of Algorithm 1."""
    config, federation = read_settings(run_config, node_config)
    setup = Setup(config, federation.clients)
    if task.digest != digest(setup):
        raise UserError(
            "the server has other settings or other initial weights than this client; are the "
            "versions of fetchsgd and torch the same, and the task?"
        )
    return Client(setup, client, keeper).answer(task)


@dataclass(frozen=True)
class Pending:
    """What a client has sent and does not know to be merged."""

    round: int
    examples: int
    loss: float
    payload: bytes

    @classmethod
    def of(cls, kept: Kept | None) -> Pending | None:
        if kept is None or REPLY not in kept.vectors or ABOUT not in kept.vectors:
            return None
        round, examples, loss = kept.vectors[ABOUT].tolist()
        return cls(int(round), int(examples), loss, kept.vectors[REPLY].tobytes())

    def arrays(self) -> dict[str, NDArray[Any]]:
        about = np.array([self.round, self.examples, self.loss], np.float64)
        return {REPLY: np.frombuffer(self.payload, np.uint8), ABOUT: about}


@dataclass(frozen=True)
class Client:
    """One client of a run, with what it keeps between rounds."""

    setup: Setup
    number: int
    keeper: Keeper

    def answer(self, task: Work) -> Answer | ResendRequest:
        """What the client replies, and what it keeps from then on."""
        update = decode(task.payload)
        if not isinstance(update, SparseUpdate):
            raise TypeError("the server's payload is not an update")
        kept = self.keeper.load()
        if kept is not None and kept.lineage != task.lineage:
            kept = None  # of another run
        pending = Pending.of(kept)
        if pending is not None and pending.round == task.round:
            return self._answer(task, pending)  # asked once more
        held, grid = self.held(kept), self.setup.grid
        if not grid.fits(held, update):
            return self._ask(task, 0 if held is None else held.version)
        held, weights = grid.receive(held, update)
        if checksum(weights) != task.checksum:
            if update.since == 0:
                raise ValueError(
                    "weights made from the seed and a whole update are not the server's"
                )
            log.warning("the weights that this client held are not the server's: everything anew")
            self._forget_version(kept)
            return self._ask(task, 0)
        memory = self.memory(kept, pending, task.merged)
        done = work(self.setup, weights, self.number, task.round, task.rate, memory, task.size)
        reply = Pending(task.round, done.examples, done.loss, encode(done.payload))
        vectors = {HELD: held.vector.cpu().numpy()}
        if done.memory is not None:
            vectors |= reply.arrays() | _arrays(done.memory)
        self.keeper.save(Kept(task.lineage, held.version, vectors))
        return self._answer(task, reply)

    def _answer(self, task: Work, reply: Pending) -> Answer:
        return Answer(
            task.digest, task.lineage, task.round, self.number, reply.examples, reply.loss,
            reply.payload,
        )  # fmt: skip

    def _ask(self, task: Work, held: int) -> ResendRequest:
        return ResendRequest(task.digest, task.lineage, task.round, self.number, held)

    def _forget_version(self, kept: Kept | None) -> None:
        """The weights are no good; what the client remembers of its gradients is."""
        if kept is None:
            return
        vectors = {name: part for name, part in kept.vectors.items() if name != HELD}
        self.keeper.save(Kept(kept.lineage, 0, vectors))

    def held(self, kept: Kept | None) -> HeldVersion | None:
        """The version that was kept, if it is of this model."""
        if kept is None or HELD not in kept.vectors:
            return None
        vector = self._tensor(kept, HELD, (self.setup.model.dim,))
        if vector is None or vector.dtype != self.setup.grid.held_dtype:
            log.warning("what this client has kept is of another model: everything anew")
            return None
        return HeldVersion(kept.version, vector)

    def memory(self, kept: Kept | None, pending: Pending | None, merged: int) -> Memory | None:
        """What the client remembers, once it knows which version its last reply went into."""
        message = self.setup.method.message
        first = message.first_memory(1, self.setup.device)
        if first is None or kept is None:
            return first
        found = {n: self._tensor(kept, MEMORY + n, part.shape) for n, part in first.items()}
        whole = {name: part for name, part in found.items() if part is not None}
        if len(whole) < len(first):
            return first
        if pending is None or merged != pending.round + 1:
            return whole  # nothing of it has arrived
        return message.forget(whole, decode(pending.payload))

    def _tensor(self, kept: Kept, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
        array = kept.vectors.get(name)
        if array is None or array.shape != tuple(shape):
            return None
        return torch.from_numpy(np.array(array)).to(self.setup.device)


def _arrays(memory: Memory) -> dict[str, NDArray[Any]]:
    return {MEMORY + name: part.cpu().numpy() for name, part in memory.items()}
