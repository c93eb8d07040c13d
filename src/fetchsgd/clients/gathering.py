"""Gathers the examples of a round's clients: as one batch, or client by client.

The simulator gathers whole cohorts; a real client gathers itself alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.clients.batches import Batch, Cohort, rounded_up
from fetchsgd.clients.dropout import example_keys
from fetchsgd.randomness import number, torch_generator
from fetchsgd.tasks.base import Augment, Clients
from fetchsgd.trees import Tree, at, flatten_clients, tree_map


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

    def gather_batch(
        self, clients: NDArray[np.int64], round: int, only: NDArray[np.int64] | None = None
    ) -> Batch:
        """All clients' examples as one batch, augmented.

        only: those of the clients at these places alone, each with its share in the whole.
        """
        padded, sizes = self.data.rows(clients)
        present = np.arange(padded.shape[1]) < sizes[:, None]
        rows = padded[present]
        shares = np.repeat(self._shares(sizes) / sizes, sizes)
        if only is not None:
            chosen = np.flatnonzero(np.repeat(np.isin(np.arange(len(clients)), only), sizes))
            if self.augment is not None:
                return self._part_of_augmented(rows, shares, chosen, round)
            rows, shares = rows[chosen], shares[chosen]
        rows, shares = self._filled_up(rows), self._filled_up(shares, "constant")
        inputs, targets = self.data.read(rows, round)
        keys = self._keys(rows, round)
        shares = shares.astype(np.float32)
        return Batch(self._augmented(inputs, round), targets, self._on_device(shares), keys)

    def _part_of_augmented(
        self,
        rows: NDArray[np.int64],
        shares: NDArray[np.float64],
        chosen: NDArray[np.int64],
        round: int,
    ) -> Batch:
        """Some examples of a batch, changed as if all of them were there: one draw is for all."""
        inputs, targets = self.data.read(self._filled_up(rows), round)
        inputs = self._augmented(inputs, round)
        places = self._filled_up(chosen)
        index = self._on_device(places)
        own_shares = self._filled_up(shares[chosen], "constant").astype(np.float32)
        keys = self._keys(rows[places], round)
        return Batch(at(inputs, index), at(targets, index), self._on_device(own_shares), keys)

    def _filled_up(self, numbers: NDArray[Any], mode: Any = "edge") -> NDArray[Any]:
        """To one of a few lengths, where that is asked for."""
        missing = rounded_up(len(numbers)) - len(numbers) if self._pads else 0
        return np.pad(numbers, (0, missing), mode) if missing else numbers

    def gather(
        self, clients: NDArray[np.int64], round: int, only: NDArray[np.int64] | None = None
    ) -> Cohort:
        """The same client by client."""
        rows, sizes = self.data.rows(clients)
        if self._pads:
            missing = rounded_up(rows.shape[1]) - rows.shape[1]
            rows = np.pad(rows, ((0, 0), (0, missing)), "edge")
        shares = self._shares(sizes).astype(np.float32)
        if only is not None and self.augment is None:
            rows, sizes, shares, only = rows[only], sizes[only], shares[only], None
        present = np.arange(rows.shape[1]) < sizes[:, None]
        inputs, targets = self.data.read(rows, round)
        if self.augment is not None:
            flat = self._augmented(flatten_clients(inputs), round)
            inputs = tree_map(lambda part: part.unflatten(0, rows.shape), flat)
        cohort = Cohort(
            inputs,
            targets,
            self._on_device(present),
            self._on_device(shares),
            self._keys(rows, round),
        )
        return cohort if only is None else cohort.part(self._on_device(only))

    def _keys(self, rows: NDArray[np.int64], round: int) -> Tensor | None:
        """By which dropout drops."""
        if self.draws is None:
            return None
        owners = np.searchsorted(self.data.offsets, rows, "right") - 1
        within = rows - self.data.offsets[owners]
        base = number(self.draws.seed, "model", round)
        return self._on_device(example_keys(base, owners + self.draws.first_client, within))

    def sizes(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many examples each client has."""
        found: NDArray[np.int64] = self.data.offsets[clients + 1] - self.data.offsets[clients]
        return found

    def weights(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """What each client counts, as a whole number: one, or its examples."""
        sizes = self.sizes(clients).astype(np.int64)
        return sizes if self.averaging == "examples" else np.ones_like(sizes)

    def _shares(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        by_examples = self.averaging == "examples"
        counts = sizes.astype(np.float64) if by_examples else np.ones(len(sizes))
        shares: NDArray[np.float64] = counts / counts.sum()
        return shares

    def _augmented(self, inputs: Tree, round: int) -> Tree:
        if self.augment is None:
            return inputs
        generator = torch_generator(self.seed, "augment", round, self.data.device)
        return self.augment(inputs, generator)

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.data.device, non_blocking=True)

    @cached_property
    def _pads(self) -> bool:
        sizes = self.data.sizes
        return self.few_shapes and bool((sizes != sizes[0]).any())
