"""Gathers the examples of a round's clients: as one batch, or client by client.

The simulator gathers whole cohorts, those of very many examples in blocks, so that memory does not
grow with them; a real client gathers itself alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.clients.batches import Batch, Cohort, rounded_up
from fetchsgd.clients.dropout import example_keys
from fetchsgd.randomness import number, torch_generator
from fetchsgd.tasks.base import Augment, Clients
from fetchsgd.trees import Tree, flatten_clients, tree_map

# Examples that are in memory at once, but for a client that has more by itself.
MOST_EXAMPLES = 1 << 14


@dataclass(frozen=True)
class DropoutSeed:
    """What dropout depends on beside the round: the run, and who the first client is."""

    seed: int
    first_client: int = 0


@dataclass(frozen=True)
class Gatherer:
    """Examples by client and round, on the device of the data.

    averaging: "uniform" gives every client the same weight (eqn 2), "examples" weighs clients by
        how many examples they have (eqn 1).
    seed: of the random changes that `augment` makes. draws: without it, torch's generators decide.
    few_shapes: pad batches to a few sizes where clients differ in size. CUDA graphs need that:
        one is recorded for each shape.
    """

    data: Clients
    averaging: str
    seed: int
    augment: Augment | None = None
    few_shapes: bool = False
    draws: DropoutSeed | None = None

    def gather_batch(self, clients: NDArray[np.int64], round: int) -> Batch:
        """All clients' examples as one batch, augmented."""
        return self._batch(clients, round, self._draws(round))

    def gather(self, clients: NDArray[np.int64], round: int) -> Cohort:
        """The same client by client."""
        shares = self._shares(self.data.sizes_of(clients))
        return self._cohort(clients, shares, round, self._draws(round))

    def batches(self, clients: NDArray[np.int64], round: int) -> Iterator[tuple[float, Batch]]:
        """The examples of a cohort block by block, each as one batch, with its share in the mean.

        Blocks have at most MOST_EXAMPLES; of fewer there is one block, whose share is one.
        """
        blocks, draws = self._blocks(clients), self._draws(round)
        shares = self._shares(self.data.sizes_of(clients))
        for block in blocks:
            share = 1.0 if len(blocks) == 1 else float(shares[block].sum())
            yield share, self._batch(clients[block], round, draws)

    def cohorts(self, clients: NDArray[np.int64], round: int) -> Iterator[Cohort]:
        """The same client by client; the weights of all blocks together sum to one."""
        shares, draws = self._shares(self.data.sizes_of(clients)), self._draws(round)
        for block in self._blocks(clients):
            yield self._cohort(clients[block], shares[block], round, draws)

    def _blocks(self, clients: NDArray[np.int64]) -> list[slice]:
        """Neighbours in a cohort that have at most MOST_EXAMPLES together, or are alone."""
        ends = self.data.sizes_of(clients).cumsum()
        edges = [0]
        while edges[-1] < len(clients):
            before = ends[edges[-1] - 1] if edges[-1] else 0
            fit = int(np.searchsorted(ends, before + MOST_EXAMPLES, "right"))
            edges.append(max(fit, edges[-1] + 1))
        return [slice(*pair) for pair in pairwise(edges)]

    def _batch(
        self, clients: NDArray[np.int64], round: int, draws: torch.Generator | None
    ) -> Batch:
        padded, sizes = self.data.rows(clients)
        present = np.arange(padded.shape[1]) < sizes[:, None]
        rows = padded[present]
        shares = np.repeat(self._shares(sizes) / sizes, sizes)
        if self._pads:
            missing = rounded_up(len(rows)) - len(rows)
            rows, shares = np.pad(rows, (0, missing), "edge"), np.pad(shares, (0, missing))
        inputs, targets = self.data.read(rows, round)
        keys = self._keys(rows, round)
        shares = shares.astype(np.float32)
        return Batch(self._augmented(inputs, draws), targets, self._on_device(shares), keys)

    def _cohort(
        self,
        clients: NDArray[np.int64],
        shares: NDArray[np.float64],
        round: int,
        draws: torch.Generator | None,
    ) -> Cohort:
        rows, sizes = self.data.rows(clients)
        if self._pads:
            missing = rounded_up(rows.shape[1]) - rows.shape[1]
            rows = np.pad(rows, ((0, 0), (0, missing)), "edge")
        present = np.arange(rows.shape[1]) < sizes[:, None]
        inputs, targets = self.data.read(rows, round)
        if self.augment is not None:
            flat = self._augmented(flatten_clients(inputs), draws)
            inputs = tree_map(lambda part: part.unflatten(0, rows.shape), flat)
        return Cohort(
            inputs,
            targets,
            self._on_device(present),
            self._on_device(shares.astype(np.float32)),
            self._keys(rows, round),
        )

    def _keys(self, rows: NDArray[np.int64], round: int) -> Tensor | None:
        """By which dropout drops."""
        if self.draws is None:
            return None
        owners, within = self.data.owners(rows)
        base = number(self.draws.seed, "model", round)
        return self._on_device(example_keys(base, owners + self.draws.first_client, within))

    def weights(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """What each client counts, as a whole number: one, or its examples."""
        sizes = self.data.sizes_of(clients).astype(np.int64)
        return sizes if self.averaging == "examples" else np.ones_like(sizes)

    def _shares(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        by_examples = self.averaging == "examples"
        counts = sizes.astype(np.float64) if by_examples else np.ones(len(sizes))
        shares: NDArray[np.float64] = counts / counts.sum()
        return shares

    def _draws(self, round: int) -> torch.Generator | None:
        """By which a round's examples are changed, one block after another."""
        if self.augment is None:
            return None
        return torch_generator(self.seed, "augment", round, self.data.device)

    def _augmented(self, inputs: Tree, draws: torch.Generator | None) -> Tree:
        if self.augment is None or draws is None:
            return inputs
        return self.augment(inputs, draws)

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.data.device, non_blocking=True)

    @cached_property
    def _pads(self) -> bool:
        return self.few_shapes and not self.data.equal_sizes
