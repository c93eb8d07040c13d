"""A method in a file of its own: in each round all clients send the same k random coordinates.

Which ones follows from the seed and the round, so no message says where its numbers belong. The
server keeps an average over rounds, with the correction of Adam for the first ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fetchsgd.methods import IDENTITY, Deliver, Delivered, Memory, Reply, State, Sum, Upload
from fetchsgd.methods.base import check_mean, deliver_dense, nothing
from fetchsgd.methods.messages import Vectors, check_round_and_values, refuse_unless, round_one
from fetchsgd.quantisers import Quantiser
from fetchsgd.wire import DenseVector, Header, Payload
from fetchsgd.wire.header import DENSE
from fetchsgd.wire.sizes import HEADER_BYTES

UNSENT = "unsent"


@dataclass(frozen=True)
class RandomKMessage:
    """k numbers, in the order of their places. `keep`: clients add up what they did not send."""

    dim: int
    k: int
    seed: int
    keep: bool

    linear: ClassVar[bool] = False  # `compress` is not told the round

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.dim,)

    @property
    def numbers(self) -> int:
        return self.k

    def places(self, round: int) -> Tensor:
        chosen = np.random.default_rng([self.seed, round]).choice(self.dim, self.k, replace=False)
        return torch.from_numpy(np.sort(chosen))

    def compress(self, vectors: Vectors) -> Tensor:
        raise NotImplementedError("what is sent depends on the round")

    def exact_cost(self, clients: int, quantiser: Quantiser) -> tuple[int, float]:
        raise NotImplementedError("for linear messages")

    def merge(
        self,
        vectors: Tensor,
        shares: Tensor,
        clients: Tensor,
        upload: Upload,
        memory: Memory | None,
    ) -> Sum:
        at = self.places(upload.round).to(vectors.device)
        if memory is not None:
            vectors = memory[UNSENT][clients] + vectors
            memory[UNSENT][clients] = vectors.index_fill(1, at, 0)
        rounded = upload.quantiser.round_rows(vectors[:, at], upload.key, clients)
        total = vectors.new_zeros(self.dim).index_put((at,), rounded.weighted_sum(shares))
        count = len(vectors)
        return Sum(total, count * self.k, rounded.section_bytes().sum() + count * HEADER_BYTES)

    def first_memory(self, clients: int, device: torch.device) -> Memory | None:
        return {UNSENT: torch.zeros(clients, self.dim, device=device)} if self.keep else None

    def remember(self, vector: Tensor, memory: Memory | None) -> Memory | None:
        return None if memory is None else {UNSENT: memory[UNSENT] + vector}

    def forget(self, memory: Memory, payload: Payload) -> Memory:
        kept = memory[UNSENT]
        return {UNSENT: kept.index_fill(1, self.places(payload.round).to(kept.device), 0)}

    def write(
        self, vector: Tensor, memory: Memory | None, client: int, round: int, upload: Upload
    ) -> DenseVector:
        rows = vector[None] if memory is None else memory[UNSENT]
        at = self.places(round).to(rows.device)
        return DenseVector(round_one(rows[:, at], client, upload), round)

    def check(self, header: Header, round: int, quantiser: Quantiser) -> None:
        refuse_unless(header.kind == DENSE and header.count == self.k)
        check_round_and_values(header, round, quantiser)

    def read(self, payload: Payload) -> Reply:
        return Reply(payload.values.floats(), self.k, self.places(payload.round))

    def add(self, total: Tensor, reply: Reply, weight: float) -> None:
        numbers = reply.numbers.to(total.device, torch.float64)
        total.index_add_(0, reply.places.to(total.device), numbers, alpha=weight)

    def predicted_bytes(self, payload: Payload) -> float:
        return HEADER_BYTES + payload.values.section_bytes()

    def most_bytes(self, quantiser: Quantiser) -> int:
        return HEADER_BYTES + quantiser.most_bytes(self.k)


@dataclass(frozen=True)
class RandomK:
    """`decay` is how much of the average a round leaves; `keep`: see the message."""

    dim: int
    k: int
    decay: float = 0.5
    keep: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.dim:
            raise ValueError(f"method.k must be from 1 to {self.dim}, got {self.k}")
        if not 0 <= self.decay < 1:
            raise ValueError(f"method.decay must be at least 0 and below 1, got {self.decay}")

    @property
    def message(self) -> RandomKMessage:
        return RandomKMessage(self.dim, self.k, self.seed, self.keep)

    @property
    def notes(self) -> list[str]:
        return [f"{self.k} of {self.dim} coordinates are sent in each round"]

    def init(self, device: torch.device) -> State:
        average, count = torch.zeros(self.dim, device=device), torch.zeros((), device=device)
        return {"average": average, "count": count, "left_over": nothing(device)}

    def step(
        self,
        mean: Tensor,
        state: State,
        rate: float,
        deliver: Deliver = IDENTITY,
        *,
        round: int = 0,  # noqa: ARG002
        check_finite: bool = True,
    ) -> tuple[Delivered, State]:
        check_mean(mean, self.message.shape, check_finite)
        average = self.decay * state["average"] + (1 - self.decay) * mean
        count = state["count"] + 1
        wanted = rate * average / (1 - self.decay**count)
        sent, left_over = deliver_dense(wanted, state["left_over"], deliver)
        return sent, {"average": average, "count": count, "left_over": left_over}
