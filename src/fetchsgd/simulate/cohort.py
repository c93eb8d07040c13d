"""A whole cohort on one device: gather its data, do all clients' work, merge what they send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.client import Cohort, LocalWork, Trainer
from fetchsgd.methods import LocalMethod, Memory, Method
from fetchsgd.randomness import torch_generator
from fetchsgd.rounds import Merged
from fetchsgd.simulate.graph import GraphedGradient
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
    averaging: str  # "uniform" (eqn 2) or "examples" (eqn 1)
    seed: int
    augment: Augment | None = None
    graphs: bool = False  # on CUDA: record the backward pass once
    mean_gradient: Callable[[Tensor, Cohort], tuple[list[Tensor], Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        graphed = self.graphs and self.data.inputs.is_cuda
        gradient = GraphedGradient(self.trainer) if graphed else self.trainer.mean_gradient
        object.__setattr__(self, "mean_gradient", gradient)

    def __call__(
        self,
        weights: Float32[Tensor, " dim"],
        clients: NDArray[np.int64],
        rate: float,
        round: int,
        memory: Memory | None,
    ) -> Merged:
        cohort = self.gather(clients, round)
        one_pass = self.work.is_one_gradient or self.work.is_one_step
        if self.method.linear and one_pass and not self.work.clip:
            pieces, loss = self.mean_gradient(weights, cohort)
            mean = self.method.compress(pieces)
            sent = len(clients) * self.method.numbers_up
            return Merged(mean if self.work.is_one_gradient else rate * mean, sent, loss)
        return self._one_by_one(weights, clients, cohort, rate, round, memory)

    def gather(self, clients: NDArray[np.int64], round: int) -> Cohort:
        """The cohort's examples, augmented."""
        device = self.data.inputs.device
        rows, sizes = self.data.rows(clients)
        present = np.arange(rows.shape[1]) < sizes[:, None]
        shares = sizes if self.averaging == "examples" else np.ones(len(sizes))
        at = torch.from_numpy(rows).to(device, non_blocking=True)
        inputs = self.data.inputs[at]
        if self.augment is not None:
            generator = torch_generator(self.seed, "augment", round, device)
            flat = self.augment(inputs.flatten(0, 1), generator)
            inputs = flat.view(inputs.shape)
        return Cohort(
            inputs,
            self.data.targets[at],
            torch.from_numpy(present).to(device, non_blocking=True),
            torch.from_numpy((shares / shares.sum()).astype(np.float32)).to(device),
        )

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
        total = torch.zeros_like(weights)
        loss = weights.new_zeros(())
        sent = torch.zeros((), dtype=torch.int64, device=weights.device)
        generator = torch_generator(self.seed, "local", round, weights.device)
        step = max(CHUNK_BYTES[weights.device.type] // (4 * len(weights)), 1)
        for start in range(0, len(clients), step):
            part = cohort.part(slice(start, start + step))
            vectors, losses = self.trainer.client_vectors(weights, part, self.work, rate, generator)
            loss = loss + part.weights @ losses
            if isinstance(self.method, LocalMethod):
                chosen = torch.from_numpy(clients[start : start + step]).to(weights.device)
                sent = sent + self._add_compressed(total, vectors, part.weights, chosen, memory)
            else:
                total += part.weights @ vectors
        if isinstance(self.method, LocalMethod):
            return Merged(total, sent, loss)
        return Merged(self.method.compress(total), len(clients) * self.method.numbers_up, loss)

    def _add_compressed(
        self,
        total: Float32[Tensor, " dim"],
        vectors: Float32[Tensor, "n dim"],
        shares: Float32[Tensor, " n"],
        clients: Tensor,
        memory: Memory | None,
    ) -> Tensor:
        assert isinstance(self.method, LocalMethod)
        kept = None if memory is None else Memory(*(part[clients] for part in memory))
        indices, values, kept = self.method.compress_each(vectors, kept)
        if memory is not None and kept is not None:
            memory.momentum[clients], memory.error[clients] = kept
        total.index_add_(0, indices.flatten(), (values * shares[:, None]).flatten())
        return (values != 0).sum()
