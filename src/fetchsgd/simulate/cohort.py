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
from fetchsgd.upload import Upload

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
        # Whatever each client does on its own that is not linear must be done for each.
        if self.method.linear and one_pass and not self.work.clip and self.upload.is_exact:
            pieces, loss = self.mean_gradient(weights, cohort)
            mean = self.method.compress(pieces)
            mean = mean if self.work.is_one_gradient else rate * mean
            return Merged(mean, *self._float_traffic(len(clients)), loss)
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
            vectors, losses = self.trainer.client_vectors(weights, part, self.work, rate, generator)
            chosen = torch.from_numpy(clients[start : start + step]).to(weights.device)
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
        kept = None if memory is None else Memory(*(part[clients] for part in memory))
        indices, values, kept = self.method.compress_each(vectors, kept)
        if memory is not None and kept is not None:
            memory.momentum[clients], memory.error[clients] = kept
        dim = vectors.shape[1]
        sent, bytes = self.upload.send_chosen(dim, values, clients, round)
        total = vectors.new_zeros(dim)
        total.index_add_(0, indices.flatten(), (sent * shares[:, None]).flatten())
        return total, (values != 0).sum(), bytes
