"""A whole cohort: gather its data, do all clients' work on a device, merge what they send.

Several processes may share the work (spread.py): each gathers and does that of its own clients.
Memory does not grow with the cohort: examples are gathered in blocks, vectors of single clients are
there in chunks, and sums are added up as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import cast

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
from fetchsgd.simulation.group_sums import GroupSums
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
        if not self.needs_each_client(upload):
            return self._in_one_pass(weights, clients, rate, upload)
        if isinstance(upload.quantiser, ModularRound):
            return self._opened(weights, clients, rate, upload, upload.quantiser, memory)
        return self._one_by_one(weights, clients, rate, upload, memory)

    def needs_each_client(self, upload: Upload) -> bool:
        """Whatever each client does on its own that is not linear must be done for each."""
        one_pass = self.work.is_one_gradient or self.work.is_one_step
        exact = upload.quantiser.exact and not self.work.clip and self.ready is None
        exact = exact and self.merger is None and self.liars is None
        return not (self.method.message.linear and one_pass and exact)

    def _in_one_pass(
        self,
        weights: Float32[Tensor, " dim"],
        clients: NDArray[np.int64],
        rate: float,
        upload: Upload,
    ) -> Merged:
        """The message of the mean gradient, which is the mean of all messages."""
        message, ranks = self.method.message, self.spread.ranks
        share = self.spread.by_cost(self.gatherer.sizes(clients))
        pieces, loss = self._mean_gradient(weights, clients, share, upload.round)
        if pieces:
            total = message.compress(pieces, upload.round)
            total = total if self.work.is_one_gradient else rate * total
        else:
            total = weights.new_zeros(message.shape)
        cost = message.exact_cost(len(clients), upload.quantiser)
        total, loss = ranks.sum_both(total, loss)
        return Merged(total, clients, *cost, loss)

    def _mean_gradient(
        self, weights: Float32[Tensor, " dim"], clients: NDArray[np.int64], share: Share, round: int
    ) -> tuple[list[Tensor], Tensor]:
        """Of all examples of this process's clients, block by block; empty without clients.

        Weight decay is added once, by the first process.
        """
        mean: list[Tensor] = []
        losses: list[Tensor] = [weights.new_zeros(())]
        blocks = self.gatherer.batches(clients, round, share.only)
        for n, (part, places, batch) in enumerate(blocks):
            first = int(places[0])
            which = [n, first] if n else [first] if first else []
            seed = number(self.seed, "model", round, *which)
            pieces, loss = self._own_trainer.mean_gradient(weights, batch, seed)
            if part == 1:
                mean, losses = pieces, [loss]
                break
            if not mean:
                mean = [torch.zeros_like(piece) for piece in pieces]
            for total, piece in zip(mean, pieces, strict=True):
                total.add_(piece, alpha=part)
            losses.append(part * loss)
        if mean and self.spread.ranks.is_first and self._own_trainer is not self.trainer:
            start = 0
            for piece in mean:
                view = weights[start : start + piece.numel()].view(piece.shape)
                piece.add_(view, alpha=self.trainer.weight_decay)
                start += piece.numel()
        return mean, reduce(add, losses)

    @cached_property
    def _own_trainer(self) -> Trainer:
        """For a part of the mean, without weight decay."""
        alone = self.spread.ranks.is_alone or not self.trainer.weight_decay
        return self.trainer if alone else replace(self.trainer, weight_decay=0.0)

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
        message, settings = self.method.message, quantiser.settings
        layout = Layout.of(message.numbers)
        if self.merger is None:
            sent, loss = self._sum(weights, clients, rate, upload, memory, examples)
            opened = quantiser.open(sent.total, int(examples.sum()), layout, len(clients))
            protocol = settings.protocol(len(clients), layout.cells)
        else:
            self.merger.open(upload.round, clients.tolist())
            groups = GroupSums(self.merger, layout)
            quantiser = replace(quantiser, clients=groups.largest(len(clients)))
            upload = upload._replace(quantiser=quantiser)
            sent, loss = self._sum(weights, clients, rate, upload, memory, examples, groups)
            opened, protocol = groups.opened(quantiser), groups.protocol(quantiser)
        up, down = sent.bytes, 0.0
        if settings.secure and protocol is not None:
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
        groups: GroupSums | None = None,
    ) -> tuple[Sum, Tensor]:
        """What all clients send, and their mean loss. `examples`: what each weighs in a sum.

        groups: where sums of groups are kept, as the server sees no more than these.
        """
        spread = self.spread
        evenly = memory is None
        share = spread.by_cost(np.ones_like(clients)) if evenly else spread.by_number(clients)
        message, round = self.method.message, upload.round
        memory, kept = without_inner(memory)
        told = None
        if self.liars is not None and self.gatherer.averaging == "examples":
            held = self.gatherer.weights(clients)
            told = self.liars.claims(held, clients, round).to(weights.device)
        sent: Sum | None = None
        losses: list[Tensor] = []
        for places, part, generator in self._chunks(clients, share, round, weights):
            seed = number(self.seed, "model", round, int(places[0]))
            numbers = torch.from_numpy(clients[places])
            numbers = numbers.to(weights.device, non_blocking=True)
            inner = {name: rows[numbers] for name, rows in kept.items()}
            vectors, own = self.trainer.client_vectors(
                weights, part, self.work, rate, generator, seed, inner or None
            )
            for name, rows in inner.items():
                kept[name][numbers] = rows
            if isinstance(upload.quantiser, ModularRound) and examples is not None:
                own_weights = torch.from_numpy(examples[places]).to(weights.device)
                upload = upload._replace(quantiser=upload.quantiser.weighing(own_weights))
            shares = part.weights
            if upload.limit is not None:
                shares = torch.full_like(shares, upload.limit.share)
            if self.liars is not None:
                vectors = self.liars.lie(vectors, clients[places], round)
                shares = shares if told is None else told[places]
            if groups is not None and examples is not None:
                more = self._by_group(vectors, numbers, examples[places], upload, groups)
            elif self.merger is not None:
                more = self._each(vectors, shares, numbers, upload, memory, self.merger)
            else:
                more = message.merge(vectors, shares, numbers, upload, memory)
            sent = more if sent is None else sent.plus(more)
            losses.append(part.weights @ own)
        if sent is None:
            return spread.summed(self._nothing(upload, weights.device), None, share)
        return spread.summed(sent, reduce(add, losses), share)

    def _chunks(
        self,
        clients: NDArray[np.int64],
        share: Share,
        round: int,
        weights: Float32[Tensor, " dim"],
    ) -> Iterator[tuple[NDArray[np.int64], Cohort, torch.Generator]]:
        """As many clients at once as there is memory for their vectors, in order.

        With their places in the cohort, and what orders their examples.
        """
        step = max(CHUNK_BYTES[weights.device.type] // (4 * len(weights)), 1)
        generator = torch_generator(self.seed, "local", round, weights.device)
        for block, places, cohort in self.gatherer.cohorts(clients, round, share.only):
            if not self.spread.ranks.is_alone:
                most, sizes = cohort.present.shape[1], self.gatherer.sizes(clients[block])
                orders = drawn_orders(sizes, most, step, self.work, generator)
                if orders is not None:
                    own = torch.from_numpy(places - block.start).to(orders.device)
                    cohort = replace(cohort, orders=orders[own])
            for start in range(0, len(places), step):
                chunk = slice(start, start + step)
                yield places[chunk], cohort.part(chunk), generator

    def _nothing(self, upload: Upload, device: torch.device) -> Sum:
        """What nobody sends."""
        message = self.method.message
        if isinstance(upload.quantiser, ModularRound):
            cells = Layout.of(message.numbers).cells
            return Sum(torch.zeros(cells, dtype=torch.int64, device=device), 0, 0.0)
        return Sum(torch.zeros(message.shape, device=device), 0, 0.0)

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

    def _by_group(
        self,
        vectors: Float32[Tensor, "n dim"],
        clients: Tensor,
        examples: NDArray[np.int64],
        upload: Upload,
        groups: GroupSums,
    ) -> Sum:
        """The same where a reply is whole levels, which go into the sum of a group unseen."""
        sums: list[Sum] = []
        for i, client in enumerate(clients.tolist()):
            one = slice(i, i + 1)
            quantiser = cast(ModularRound, upload.quantiser)
            assert quantiser.examples is not None
            alone = upload._replace(quantiser=quantiser.weighing(quantiser.examples[one]))
            share = vectors.new_ones(1)
            sent = self.method.message.merge(vectors[one], share, clients[one], alone, None)
            groups.add(client, sent.total, int(examples[i]))
            sums.append(sent._replace(total=torch.zeros_like(sent.total[:0])))
        return reduce(Sum.plus, sums)
