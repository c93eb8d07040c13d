"""A whole cohort: gather its data, do all clients' work on a device, merge what they send.

Several processes may share the work (spread.py): each gathers and does that of its own clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.clients.batches import Cohort
from fetchsgd.clients.gathering import Gatherer
from fetchsgd.clients.trainer import LocalWork, Trainer
from fetchsgd.methods import Memory, Method, Sum, Upload
from fetchsgd.randomness import number, torch_generator
from fetchsgd.server.rounds import Merged
from fetchsgd.simulation.spread import NOT_SPREAD, Share, Spread, drawn_orders
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
    spread: Spread = NOT_SPREAD

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
        if not self.needs_each_client(upload):
            return self._in_one_pass(weights, clients, rate, upload)
        if isinstance(upload.quantiser, ModularRound):
            return self._opened(weights, clients, rate, upload, upload.quantiser)
        return self._one_by_one(weights, clients, rate, upload, memory)

    def needs_each_client(self, upload: Upload) -> bool:
        """Whatever each client does on its own that is not linear must be done for each."""
        one_pass = self.work.is_one_gradient or self.work.is_one_step
        exact = upload.quantiser.exact and not self.work.clip and self.ready is None
        return not (self.method.message.linear and one_pass and exact)

    def _in_one_pass(
        self,
        weights: Float32[Tensor, " dim"],
        clients: NDArray[np.int64],
        rate: float,
        upload: Upload,
    ) -> Merged:
        """The message of the mean gradient, which is the mean of all messages."""
        message, round = self.method.message, upload.round
        share = self.spread.by_cost(self.gatherer.sizes(clients))
        total, loss = weights.new_zeros(message.shape), weights.new_zeros(())
        if len(share.places):
            batch = self.gatherer.gather_batch(clients, round, share.only)
            first = int(share.places[0])
            seed = number(self.seed, "model", round, *([first] if first else []))
            pieces, loss = self._own_trainer.mean_gradient(weights, batch, seed)
            total = message.compress(pieces, round)
            total = total if self.work.is_one_gradient else rate * total
        cost = message.exact_cost(len(clients), upload.quantiser)
        ranks = self.spread.ranks
        return Merged(ranks.sum(total), clients, *cost, ranks.sum(loss))

    @cached_property
    def _own_trainer(self) -> Trainer:
        """For a part of the mean: weight decay is added by one process."""
        return self.trainer if self.spread.ranks.is_first else replace(self.trainer, weight_decay=0)

    def _one_by_one(
        self,
        weights: Float32[Tensor, " dim"],
        clients: NDArray[np.int64],
        rate: float,
        upload: Upload,
        memory: Memory | None,
    ) -> Merged:
        """Every client's own vector, chunk by chunk, of which the next may overwrite the last."""
        sent, loss = self._sum(weights, clients, rate, upload, memory)
        return Merged(
            sent.total, clients, sent.numbers, sent.bytes, loss,
            sizes=sent.sizes, within=sent.within,
        )  # fmt: skip

    def _opened(
        self,
        weights: Float32[Tensor, " dim"],
        clients: NDArray[np.int64],
        rate: float,
        upload: Upload,
        quantiser: ModularRound,
    ) -> Merged:
        """The same where the server sees the sum alone, modulo 2^b."""
        examples = self.gatherer.weights(clients)
        sent, loss = self._sum(weights, clients, rate, upload, None, examples)
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
        spread = self.spread
        if memory is None:
            share = spread.by_cost(np.ones_like(clients))
        else:
            share = spread.by_number(clients)
        message, round = self.method.message, upload.round
        sums: list[Sum] = []
        losses: list[Tensor] = []
        generator = torch_generator(self.seed, "local", round, weights.device)
        step = max(CHUNK_BYTES[weights.device.type] // (4 * len(weights)), 1)
        cohort = self._gather(clients, share, step, generator, round)
        for start in range(0, len(share.places), step):
            assert cohort is not None
            places = share.places[start : start + step]
            part = cohort.part(slice(start, start + step))
            seed = number(self.seed, "model", round, int(places[0]))
            vectors, own = self.trainer.client_vectors(
                weights, part, self.work, rate, generator, seed
            )
            numbers = torch.from_numpy(clients[places])
            numbers = numbers.to(weights.device, non_blocking=True)
            if isinstance(upload.quantiser, ModularRound) and examples is not None:
                own_weights = torch.from_numpy(examples[places]).to(weights.device)
                upload = upload._replace(quantiser=upload.quantiser.weighing(own_weights))
            shares = part.weights
            if upload.limit is not None:
                shares = torch.full_like(shares, upload.limit.share)
            sums.append(message.merge(vectors, shares, numbers, upload, memory))
            losses.append(part.weights @ own)
        if sums:
            return self.spread.summed(reduce(Sum.plus, sums), reduce(add, losses), share)
        return self.spread.summed(self._nothing(upload, weights.device), None, share)

    def _gather(
        self,
        clients: NDArray[np.int64],
        share: Share,
        at_once: int,
        generator: torch.Generator,
        round: int,
    ) -> Cohort | None:
        """The examples of this process's clients, and in which order they come; None without."""
        if not len(share.places):
            return None
        cohort = self.gatherer.gather(clients, round, share.only)
        if self.spread.ranks.is_alone:
            return cohort
        most = cohort.present.shape[1]
        orders = drawn_orders(share.of, most, at_once, self.work, generator)
        places = torch.from_numpy(share.places).to(cohort.present.device)
        return replace(cohort, orders=None if orders is None else orders[places])

    def _nothing(self, upload: Upload, device: torch.device) -> Sum:
        """What nobody sends."""
        message = self.method.message
        if isinstance(upload.quantiser, ModularRound):
            cells = Layout.of(message.numbers).cells
            return Sum(torch.zeros(cells, dtype=torch.int64, device=device), 0, 0.0)
        return Sum(torch.zeros(message.shape, device=device), 0, 0.0)
