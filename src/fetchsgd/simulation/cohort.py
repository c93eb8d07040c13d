"""A whole cohort on one device: gather its data, do all clients' work, merge what they send.

Memory does not grow with the cohort: examples are gathered in blocks, vectors of single clients are
there in chunks, and sums are added up as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.clients.batches import Cohort
from fetchsgd.clients.gathering import Gatherer
from fetchsgd.clients.inner import without_inner
from fetchsgd.clients.local_work import LocalWork
from fetchsgd.clients.trainer import Trainer
from fetchsgd.methods import Memory, Method, Sum, Upload
from fetchsgd.randomness import number, torch_generator
from fetchsgd.robust import Liars, Merger
from fetchsgd.server.rounds import Merged
from fetchsgd.sums import ModularRound
from fetchsgd.sums.layout import Layout

# Memory for vectors of single clients; half a dozen are alive at once.
CHUNK_BYTES = {"cpu": 1 << 28, "cuda": 1 << 32}


@dataclass(frozen=True)
class CohortAtWork:
    """Lines 5 to 10 of Algorithm 1 for simulated clients."""

    gatherer: Gatherer  # of data on the device of the weights
    trainer: Trainer
    method: Method
    work: LocalWork
    upload: Callable[[int, Tensor | None], Upload]  # of a round, given the size of numbers
    seed: int
    # With privacy: how the clients of a cohort of this size send.
    ready: Callable[[Upload, int], Upload] | None = None
    merger: Merger | None = None  # None takes the mean
    liars: Liars | None = None

    def __call__(
        self,
        weights: Float32[Tensor, " dim"],
        clients: NDArray[np.int64],
        rate: float,
        round: int,
        memory: Memory | None,
        size: Tensor | None = None,
    ) -> Merged:
        """What the cohort sends, merged. Memory is updated in place."""
        upload = self.upload(round, size)
        if self.ready is not None:
            upload = self.ready(upload, len(clients))
        message, quantiser = self.method.message, upload.quantiser
        if not self.needs_each_client(upload):
            pieces, loss = self._mean_gradient(weights, clients, round)
            mean = message.compress(pieces, round)
            mean = mean if self.work.is_one_gradient else rate * mean
            return Merged(mean, clients, *message.exact_cost(len(clients), quantiser), loss)
        if isinstance(quantiser, ModularRound):
            return self._opened(weights, clients, rate, upload, quantiser, memory)
        return self._one_by_one(weights, clients, rate, upload, memory)

    def needs_each_client(self, upload: Upload) -> bool:
        """Whatever each client does on its own that is not linear must be done for each."""
        one_pass = self.work.is_one_gradient or self.work.is_one_step
        exact = upload.quantiser.exact and not self.work.clip and self.ready is None
        exact = exact and self.merger is None and self.liars is None
        return not (self.method.message.linear and one_pass and exact)

    def _mean_gradient(
        self, weights: Float32[Tensor, " dim"], clients: NDArray[np.int64], round: int
    ) -> tuple[list[Tensor], Tensor]:
        """Of all clients' examples, block by block."""
        mean: list[Tensor] = []
        losses: list[Tensor] = []
        for n, (share, batch) in enumerate(self.gatherer.batches(clients, round)):
            seed = number(self.seed, "model", round, *([n] if n else []))
            pieces, loss = self.trainer.mean_gradient(weights, batch, seed)
            if share == 1:
                return pieces, loss
            if not mean:
                mean = [torch.zeros_like(piece) for piece in pieces]
            for total, piece in zip(mean, pieces, strict=True):
                total.add_(piece, alpha=share)
            losses.append(share * loss)
        return mean, reduce(add, losses)

    def _one_by_one(
        self,
        weights: Float32[Tensor, " dim"],
        clients: NDArray[np.int64],
        rate: float,
        upload: Upload,
        memory: Memory | None,
    ) -> Merged:
        """Every client's own vector, chunk by chunk, of which the next may overwrite the last."""
        if self.merger is not None:
            self.merger.open(upload.round, clients.tolist())
        sent, loss = self._sum(weights, clients, rate, upload, memory)
        mean = sent.total
        if self.merger is not None:
            mean = self.merger.mean()
            self.merger.close()
        return Merged(
            mean, clients, sent.numbers, sent.bytes, loss,
            sizes=sent.sizes, within=sent.within,
        )  # fmt: skip

    def _opened(
        self,
        weights: Float32[Tensor, " dim"],
        clients: NDArray[np.int64],
        rate: float,
        upload: Upload,
        quantiser: ModularRound,
        memory: Memory | None,
    ) -> Merged:
        """The same where the server sees the sum alone, modulo 2^b."""
        examples = self.gatherer.weights(clients)
        sent, loss = self._sum(weights, clients, rate, upload, memory, examples)
        message = self.method.message
        layout = Layout.of(message.numbers)
        opened = quantiser.open(sent.total, int(examples.sum()), layout, len(clients))
        up, down = sent.bytes, 0.0
        settings = quantiser.settings
        protocol = settings.protocol(len(clients), layout.cells) if settings.secure else None
        if protocol is not None:
            up, down = map(float, protocol)
        return Merged(
            opened.mean.view(message.shape), clients, sent.numbers, up, loss,
            bytes_down=down, opened=opened, clipped=sent.clipped,
        )  # fmt: skip

    def _sum(
        self,
        weights: Float32[Tensor, " dim"],
        clients: NDArray[np.int64],
        rate: float,
        upload: Upload,
        memory: Memory | None,
        examples: NDArray[np.int64] | None = None,
    ) -> tuple[Sum, Tensor]:
        """What all clients send, and their mean loss. `examples`: what each weighs in a sum."""
        message, round = self.method.message, upload.round
        memory, kept = without_inner(memory)
        told = None
        if self.liars is not None and self.gatherer.averaging == "examples":
            told = self.liars.claims(self.gatherer.weights(clients), clients).to(weights.device)
        sent: Sum | None = None
        losses: list[Tensor] = []
        generator = torch_generator(self.seed, "local", round, weights.device)
        start = 0
        for part in self._chunks(clients, round, weights):
            own_clients = slice(start, start + len(part.weights))
            seed = number(self.seed, "model", round, start)
            numbers = torch.from_numpy(clients[own_clients])
            numbers = numbers.to(weights.device, non_blocking=True)
            inner = {name: rows[numbers] for name, rows in kept.items()}
            vectors, own = self.trainer.client_vectors(
                weights, part, self.work, rate, generator, seed, inner or None
            )
            for name, rows in inner.items():
                kept[name][numbers] = rows
            if isinstance(upload.quantiser, ModularRound) and examples is not None:
                own_weights = torch.from_numpy(examples[own_clients]).to(weights.device)
                upload = upload._replace(quantiser=upload.quantiser.weighing(own_weights))
            shares = part.weights
            if upload.limit is not None:
                shares = torch.full_like(shares, upload.limit.share)
            if self.liars is not None:
                vectors = self.liars.lie(vectors, clients[own_clients], round)
                shares = shares if told is None else told[own_clients]
            if self.merger is None:
                more = message.merge(vectors, shares, numbers, upload, memory)
            else:
                more = self._each(vectors, shares, numbers, upload, memory, self.merger)
            sent = more if sent is None else sent.plus(more)
            losses.append(part.weights @ own)
            start = own_clients.stop
        assert sent is not None
        return sent, reduce(add, losses)

    def _chunks(
        self, clients: NDArray[np.int64], round: int, weights: Float32[Tensor, " dim"]
    ) -> Iterator[Cohort]:
        """As many clients at once as there is memory for their vectors, in order."""
        step = max(CHUNK_BYTES[weights.device.type] // (4 * len(weights)), 1)
        for cohort in self.gatherer.cohorts(clients, round):
            for start in range(0, len(cohort.weights), step):
                yield cohort.part(slice(start, start + step))

    def _each(
        self,
        vectors: Float32[Tensor, "n dim"],
        shares: Float32[Tensor, " n"],
        clients: Tensor,
        upload: Upload,
        memory: Memory | None,
        merger: Merger,
    ) -> Sum:
        """The same message by message, as a real server sees them; the sum itself is not used."""
        message, whole = self.method.message, torch.ones_like(shares[:1])
        sums: list[Sum] = []
        for i, (client, share) in enumerate(zip(clients.tolist(), shares.tolist(), strict=True)):
            one = slice(i, i + 1)
            sent = message.merge(vectors[one], whole, clients[one], upload, memory)
            merger.add(client, sent.total, share)
            sums.append(sent._replace(total=sent.total.new_zeros(())))
        return reduce(Sum.plus, sums)
