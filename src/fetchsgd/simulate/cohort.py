"""A whole cohort on one device: gather its data, do all clients' work, merge what they send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.clients.batches import Batch, Cohort, rounded_up
from fetchsgd.clients.trainer import LocalWork, Trainer
from fetchsgd.methods import Dice, Memory, Method, Sum
from fetchsgd.randomness import torch_generator
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
    dice: Callable[[int], Dice]  # of a round
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
        """Memory is updated in place."""
        message, quantiser = self.method.message, self.dice(round).quantiser
        one_pass = self.work.is_one_gradient or self.work.is_one_step
        # Whatever each client does on its own that is not linear must be done for each.
        if message.linear and one_pass and not self.work.clip and quantiser.exact:
            pieces, loss = self.trainer.mean_gradient(weights, self.gather_batch(clients, round))
            mean = message.compress(pieces)
            mean = mean if self.work.is_one_gradient else rate * mean
            return Merged(mean, clients, *message.exact_cost(len(clients), quantiser), loss)
        cohort = self.gather(clients, round)
        return self._one_by_one(weights, clients, cohort, rate, round, memory)

    def gather_batch(self, clients: NDArray[np.int64], round: int) -> Batch:
        """The cohort's examples side by side, augmented."""
        padded, sizes = self.data.rows(clients)
        present = np.arange(padded.shape[1]) < sizes[:, None]
        rows = padded[present]
        shares = np.repeat(self._shares(sizes) / sizes, sizes)
        if self._sizes_vary:
            missing = rounded_up(len(rows)) - len(rows)
            rows, shares = np.pad(rows, (0, missing), "edge"), np.pad(shares, (0, missing))
        at = self._on_device(rows)
        inputs = self._augmented(self.data.inputs_at(rows, at), round)
        return Batch(inputs, self.data.targets[at], self._on_device(shares.astype(np.float32)))

    def gather(self, clients: NDArray[np.int64], round: int) -> Cohort:
        """The same client by client."""
        rows, sizes = self.data.rows(clients)
        if self._sizes_vary:
            missing = rounded_up(rows.shape[1]) - rows.shape[1]
            rows = np.pad(rows, ((0, 0), (0, missing)), "edge")
        present = np.arange(rows.shape[1]) < sizes[:, None]
        at = self._on_device(rows)
        inputs = self.data.inputs_at(rows, at)
        flat = self._augmented(inputs.flatten(0, 1), round)
        return Cohort(
            flat.view(inputs.shape),
            self.data.targets[at],
            self._on_device(present),
            self._on_device(self._shares(sizes).astype(np.float32)),
        )

    def _shares(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        by_examples = self.averaging == "examples"
        counts = sizes.astype(np.float64) if by_examples else np.ones(len(sizes))
        shares: NDArray[np.float64] = counts / counts.sum()
        return shares

    def _augmented(self, inputs: Tensor, round: int) -> Tensor:
        if self.augment is None:
            return inputs
        generator = torch_generator(self.seed, "augment", round, inputs.device)
        return self.augment(inputs, generator)

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.data.inputs.device, non_blocking=True)

    @cached_property
    def _sizes_vary(self) -> bool:
        """Then batches are filled up to a few sizes, since graphs are recorded for each."""
        sizes = self.data.sizes
        return self.trainer.graphs and bool((sizes != sizes[0]).any())

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
        message, dice = self.method.message, self.dice(round)
        sums: list[Sum] = []
        losses: list[Tensor] = []
        generator = torch_generator(self.seed, "local", round, weights.device)
        step = max(CHUNK_BYTES[weights.device.type] // (4 * len(weights)), 1)
        for start in range(0, len(clients), step):
            part = cohort.part(slice(start, start + step))
            vectors, own = self.trainer.client_vectors(weights, part, self.work, rate, generator)
            numbers = self._on_device(clients[start : start + step])
            sums.append(message.merge(vectors, part.weights, numbers, dice, memory))
            losses.append(part.weights @ own)
        total, numbers_up, bytes_up = (reduce(add, parts) for parts in zip(*sums, strict=True))
        return Merged(total, clients, numbers_up, bytes_up, reduce(add, losses))
