"""Examples on their way into a model: of a whole cohort as one batch, or client by client."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from fetchsgd.clients.dropout import next_step
from fetchsgd.trees import Tree, at, flatten_clients, tree_map


@dataclass(frozen=True)
class Batch:
    """Examples, and what each of them counts; one that only fills up the batch counts nothing."""

    inputs: Tree  # (b, ...)
    targets: Tree  # (b, ...)
    shares: Float32[Tensor, " b"]  # they sum to one
    keys: Int64[Tensor, " b"] | None = None  # by which dropout drops (dropout.py)

    @property
    def examples(self) -> Tree:
        return as_images(self.inputs)


@dataclass(frozen=True)
class Cohort:
    """The examples of a round's clients, padded to the largest, and each client's weight."""

    inputs: Tree  # (n, m, ...)
    targets: Tree  # (n, m, ...)
    present: Bool[Tensor, "n m"]
    weights: Float32[Tensor, " n"]  # they sum to one
    keys: Int64[Tensor, "n m"] | None = None  # by which dropout drops
    # Numbers from 0 to 1 that order examples, where they are drawn for more clients than these.
    orders: Float32[Tensor, "n epochs m"] | None = None

    @property
    def examples(self) -> Tree:
        """The inputs of all clients as one batch."""
        return as_images(flatten_clients(self.inputs))

    @property
    def batch(self) -> Batch:
        """All clients at once, each as its weight says."""
        shares = (self.weights / self.present.sum(dim=1).clamp(min=1))[:, None] * self.present
        inputs, targets = flatten_clients(self.inputs), flatten_clients(self.targets)
        return Batch(inputs, targets, shares.flatten(), flatten_clients(self.keys))

    def part(self, chosen: slice | Int64[Tensor, " k"]) -> Cohort:
        trees = self.inputs, self.targets, self.keys, self.orders
        inputs, targets, keys, orders = at(trees, chosen)
        return Cohort(inputs, targets, self.present[chosen], self.weights[chosen], keys, orders)

    def alone(self, client: int) -> Batch:
        """One client, which counts fully."""
        present = self.present[client]
        shares = present / present.sum().clamp(min=1)
        inputs, targets, keys = at((self.inputs, self.targets, self.keys), client)
        return Batch(inputs, targets, shares, keys)

    def take(self, columns: Tensor) -> Cohort:
        """Some examples of each client."""
        rows = torch.arange(len(columns), device=columns.device)[:, None]
        chosen = (rows, columns)
        inputs, targets, keys = at((self.inputs, self.targets, self.keys), chosen)
        return Cohort(inputs, targets, self.present[chosen], self.weights, keys)

    def with_present(self, present: Bool[Tensor, "n m"]) -> Cohort:
        """The same where only these examples count."""
        return replace(self, present=present)

    def later(self, step: int) -> Cohort:
        """The same examples in another local step, where dropout drops other numbers."""
        return self if self.keys is None else replace(self, keys=next_step(self.keys, step))

    def shuffled(self, generator: torch.Generator, epoch: int = 0) -> Tensor:
        """A random order of each client's examples, absent ones last."""
        if self.orders is None:
            shape, device = self.present.shape, self.present.device
            keys = torch.rand(shape, generator=generator, device=device)
        else:
            keys = self.orders[:, epoch]
        return keys.masked_fill(~self.present, 2.0).argsort(dim=1)


def as_images(inputs: Tree) -> Tree:
    """Images in the layout in which GPUs convolve faster."""

    def change(part: Tensor) -> Tensor:
        if part.is_cuda and part.ndim == 4:
            return part.contiguous(memory_format=torch.channels_last)
        return part

    return tree_map(change, inputs)


def rounded_up(count: int) -> int:
    """The next of a few sizes, eight between a power of two and the next."""
    step = 1 << max(count.bit_length() - 4, 0)
    return -(-count // step) * step
