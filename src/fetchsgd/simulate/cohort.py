"""A whole cohort on one device: gather its data, do all clients' work, merge what they send."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.clients.batches import Cohort
from fetchsgd.clients.gathering import Gatherer
from fetchsgd.clients.trainer import LocalWork, Trainer
from fetchsgd.methods import LocalMethod, Memory, Method
from fetchsgd.quantisers.upload import Upload
from fetchsgd.randomness import number, torch_generator
from fetchsgd.server.rounds import Merged
from fetchsgd.tasks import ClientData
from fetchsgd.tasks.base import Augment

# Memory for vectors of single clients; half a dozen are alive at once.
CHUNK_BYTES = {"cpu": 1 << 28, "cuda": 1 << 32}


@dataclass(frozen=True)
class CohortAtWork:
    """Lines 5 to 10 of Algorithm 1 for simulated clients."""

    data: ClientData  # on the device of the weights
    trainer: Trainer
    method: Method
    work: LocalWork
    upload: Upload
    averaging: str  # "uniform" (eqn 2) or "examples" (eqn 1)
    seed: int
    augment: Augment | None = None

    def __call__(
        self,
        weights: Float32[Tensor, " dim"],
        clients: NDArray[np.int64],
        rate: float,
        round: int,
        memory: Memory | None,
    ) -> Merged:
        one_pass = self.work.is_one_gradient or self.work.is_one_step
        # Whatever each client does on its own that is not linear must be done for each.
        if self.method.linear and one_pass and not self.work.clip and self.upload.is_exact:
            batch = self.gatherer.gather_batch(clients, round)
            seed = number(self.seed, "model", round)
            pieces, loss = self.trainer.mean_gradient(weights, batch, seed)
            mean = self.method.compress(pieces)
            mean = mean if self.work.is_one_gradient else rate * mean
            return Merged(mean, *self._float_traffic(len(clients)), loss)
        cohort = self.gatherer.gather(clients, round)
        return self._one_by_one(weights, clients, cohort, rate, round, memory)

    @cached_property
    def gatherer(self) -> Gatherer:
        """Where the cohort's examples come from."""
        return Gatherer(
            self.data, self.averaging, self.seed, self.augment, few_shapes=self.trainer.graphs
        )

    def _float_traffic(self, clients: int) -> tuple[int, Tensor]:
        """Numbers and bytes that so many clients send if all send the same number of floats."""
        numbers = self.method.numbers_up
        return clients * numbers, self.upload.float_bytes(clients, numbers)

    def _one_by_one(
        self,
        weights: Float32[Tensor, " dim"],
        clients: NDArray[np.int64],
        cohort: Cohort,
        rate: float,
        round: int,
        memory: Memory | None,
    ) -> Merged:
        """Every client's own vector, in chunks that fit into memory."""
        merged: Merged | None = None
        generator = torch_generator(self.seed, "local", round, weights.device)
        step = max(CHUNK_BYTES[weights.device.type] // (4 * len(weights)), 1)
        for start in range(0, len(clients), step):
            part = cohort.part(slice(start, start + step))
            vectors, losses = self.trainer.client_vectors(
                weights, part, self.work, rate, generator, number(self.seed, "model", round, start)
            )
            chosen = torch.from_numpy(clients[start : start + step])
            chosen = chosen.to(weights.device, non_blocking=True)
            loss = part.weights @ losses
            if isinstance(self.method, LocalMethod):
                more = Merged(
                    *self._choose_each(vectors, part.weights, chosen, round, memory), loss
                )
            else:
                more = Merged(*self._compress_each(vectors, part.weights, chosen, round), loss)
            merged = more if merged is None else merged.and_also(more)
        assert merged is not None
        return merged

    def _compress_each(
        self,
        vectors: Float32[Tensor, "n dim"],
        shares: Float32[Tensor, " n"],
        clients: Tensor,
        round: int,
    ) -> tuple[Tensor, int, Tensor]:
        """A linear method: the sum of what clients send, and what it takes."""
        if self.upload.is_exact:
            # The sum of the compressed is the compressed sum, of which there is only one.
            return self.method.compress(shares @ vectors), *self._float_traffic(len(vectors))
        rows = self.method.compress(vectors)
        total, bytes = self.upload.merge(rows.flatten(1), shares, clients, round)
        return total.view(rows.shape[1:]), rows.numel(), bytes

    def _choose_each(
        self,
        vectors: Float32[Tensor, "n dim"],
        shares: Float32[Tensor, " n"],
        clients: Tensor,
        round: int,
        memory: Memory | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same where clients choose what to send."""
        assert isinstance(self.method, LocalMethod)
        (n, dim), k = vectors.shape, self.method.k
        if memory is None and self.upload.is_exact:
            bytes = self.upload.chosen_bytes(n, k, dim, vectors.device)
            return *self.method.compressed_sum(vectors, shares), bytes
        kept = None if memory is None else Memory(*(part[clients] for part in memory))
        chosen, vectors, kept = self.method.compress_each(vectors, kept)
        if memory is not None and kept is not None:
            memory.momentum[clients], memory.error[clients] = kept
        if self.upload.is_exact:
            sent = torch.where(chosen, vectors, 0)
            bytes = self.upload.chosen_bytes(n, k, dim, vectors.device)
            return shares @ sent, sent.count_nonzero(), bytes
        # Row after row, in order of index, as they are written; without waiting for their number.
        places = torch.nonzero_static(chosen.flatten(), size=n * k).squeeze(1)
        values = vectors.flatten()[places].view(n, k)
        read, bytes = self.upload.send_chosen(dim, values, clients, round)
        # Rows that are summed in a fixed order: sums in place would differ from run to run.
        sent = vectors.new_zeros(n * dim).scatter_(0, places, read.flatten()).view(n, dim)
        return shares @ sent, values.count_nonzero(), bytes
