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
from fetchsgd.trees import Tree, at, flatten_clients, tree_map

# Examples that are in memory at once, but for a client that has more by itself.
MOST_EXAMPLES = 1 << 14
Places = NDArray[np.int64]  # of clients in a cohort, in rising order


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

    def batches(
        self, clients: NDArray[np.int64], round: int, only: Places | None = None
    ) -> Iterator[tuple[float, Places, Batch]]:
        """The examples of a cohort block by block, each as one batch, with its share in the mean.

        Blocks have at most MOST_EXAMPLES; of fewer there is one block, whose share is one.
        only: of the clients at these places of the cohort alone, each with its share in the whole.
        With a batch come the places of its clients; blocks without any are left out.
        """
        blocks, draws = self._blocks(clients), self._draws(round)
        shares = self._shares(self.data.sizes_of(clients))
        for block in blocks:
            share = 1.0 if len(blocks) == 1 else float(shares[block].sum())
            places, own = _within(block, only)
            if len(places):
                yield share, places, self._batch(clients[block], round, draws, own)
            elif draws is not None:  # the next block's draws come after this one's
                self._batch(clients[block], round, draws)

    def cohorts(
        self, clients: NDArray[np.int64], round: int, only: Places | None = None
    ) -> Iterator[tuple[slice, Places, Cohort]]:
        """The same client by client; the weights of all blocks together sum to one.

        With a block, which is a part of the cohort, come the places of its clients, also if there
        are none.
        """
        shares, draws = self._shares(self.data.sizes_of(clients)), self._draws(round)
        for block in self._blocks(clients):
            places, own = _within(block, only)
            yield block, places, self._cohort(clients[block], shares[block], round, draws, own)

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
        self,
        clients: NDArray[np.int64],
        round: int,
        draws: torch.Generator | None,
        only: Places | None = None,
    ) -> Batch:
        padded, sizes = self.data.rows(clients)
        present = np.arange(padded.shape[1]) < sizes[:, None]
        rows = padded[present]
        shares = np.repeat(self._shares(sizes) / sizes, sizes)
        if only is not None:
            is_chosen = np.zeros(len(clients), dtype=bool)
            is_chosen[only] = True
            chosen = np.flatnonzero(np.repeat(is_chosen, sizes))
            if draws is not None:
                return self._part_of_augmented(rows, shares, chosen, round, draws)
            rows, shares = rows[chosen], shares[chosen]
        rows, shares = self._filled_up(rows), self._filled_up(shares, "constant")
        inputs, targets = self.data.read(rows, round)
        keys = self._keys(rows, round)
        shares = shares.astype(np.float32)
        return Batch(self._augmented(inputs, draws), targets, self._on_device(shares), keys)

    def _part_of_augmented(
        self,
        rows: NDArray[np.int64],
        shares: NDArray[np.float64],
        chosen: NDArray[np.int64],
        round: int,
        draws: torch.Generator,
    ) -> Batch:
        """Some examples of a batch, changed as if all of them were there: one draw is for all."""
        inputs, targets = self.data.read(self._filled_up(rows), round)
        inputs = self._augmented(inputs, draws)
        places = self._filled_up(chosen)
        index = self._on_device(places)
        own_shares = self._filled_up(shares[chosen], "constant").astype(np.float32)
        keys = self._keys(rows[places], round)
        return Batch(at(inputs, index), at(targets, index), self._on_device(own_shares), keys)

    def _filled_up(self, numbers: NDArray[Any], mode: Any = "edge") -> NDArray[Any]:
        """To one of a few lengths, where that is asked for."""
        missing = rounded_up(len(numbers)) - len(numbers) if self._pads else 0
        return np.pad(numbers, (0, missing), mode) if missing else numbers

    def _cohort(
        self,
        clients: NDArray[np.int64],
        shares: NDArray[np.float64],
        round: int,
        draws: torch.Generator | None,
        only: Places | None = None,
    ) -> Cohort:
        rows, sizes = self.data.rows(clients)
        if self._pads:
            missing = rounded_up(rows.shape[1]) - rows.shape[1]
            rows = np.pad(rows, ((0, 0), (0, missing)), "edge")
        if only is not None and draws is None:
            rows, sizes, shares, only = rows[only], sizes[only], shares[only], None
        present = np.arange(rows.shape[1]) < sizes[:, None]
        if not len(rows):
            nothing = self._on_device(shares.astype(np.float32))
            return Cohort(None, None, self._on_device(present), nothing)
        inputs, targets = self.data.read(rows, round)
        if self.augment is not None:
            flat = self._augmented(flatten_clients(inputs), draws)
            inputs = tree_map(lambda part: part.unflatten(0, rows.shape), flat)
        cohort = Cohort(
            inputs,
            targets,
            self._on_device(present),
            self._on_device(shares.astype(np.float32)),
            self._keys(rows, round),
        )
        return cohort if only is None else cohort.part(self._on_device(only))

    def _keys(self, rows: NDArray[np.int64], round: int) -> Tensor | None:
        """By which dropout drops."""
        if self.draws is None:
            return None
        owners, within = self.data.owners(rows)
        base = number(self.draws.seed, "model", round)
        return self._on_device(example_keys(base, owners + self.draws.first_client, within))

    def sizes(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many examples each client has."""
        return self.data.sizes_of(clients).astype(np.int64)

    def weights(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """What each client counts, as a whole number: one, or its examples."""
        sizes = self.sizes(clients)
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


def _within(block: slice, only: Places | None) -> tuple[Places, Places | None]:
    """Which of these places are in a block: in the cohort, and in the block; None there for all."""
    if only is None:
        return np.arange(block.start, block.stop), None
    places = only[(only >= block.start) & (only < block.stop)]
    return places, places - block.start
