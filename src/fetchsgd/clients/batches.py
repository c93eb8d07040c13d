"""Examples on their way into a model: of a whole cohort as one batch, or client by client."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float32
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Examples, and what each of them counts; one that only fills up the batch counts nothing."""

    inputs: Tensor  # (b, ...)
    targets: Tensor  # (b, ...)
    shares: Float32[Tensor, " b"]  # they sum to one

    @property
    def examples(self) -> Tensor:
        return as_images(self.inputs)


@dataclass(frozen=True)
class Cohort:
    """The examples of a round's clients, padded to the largest, and each client's weight."""

    inputs: Tensor  # (n, m, ...)
    targets: Tensor  # (n, m, ...)
    present: Bool[Tensor, "n m"]
    weights: Float32[Tensor, " n"]  # they sum to one

    @property
    def examples(self) -> Tensor:
        """The inputs of all clients as one batch."""
        return as_images(self.inputs.flatten(0, 1))

    @property
    def batch(self) -> Batch:
        """All clients at once, each as its weight says."""
        shares = (self.weights / self.present.sum(dim=1).clamp(min=1))[:, None] * self.present
        return Batch(self.inputs.flatten(0, 1), self.targets.flatten(0, 1), shares.flatten())

    def part(self, chosen: slice) -> Cohort:
        return Cohort(
            self.inputs[chosen], self.targets[chosen], self.present[chosen], self.weights[chosen]
        )

    def alone(self, client: int) -> Batch:
        """One client, which counts fully."""
        present = self.present[client]
        return Batch(
            self.inputs[client], self.targets[client], present / present.sum().clamp(min=1)
        )

    def take(self, columns: Tensor) -> Cohort:
        """Some examples of each client."""
        rows = torch.arange(len(columns), device=columns.device)[:, None]
        return Cohort(
            self.inputs[rows, columns],
            self.targets[rows, columns],
            self.present[rows, columns],
            self.weights,
        )

    def shuffled(self, generator: torch.Generator) -> Tensor:
        """A random order of each client's examples, absent ones last."""
        shape, device = self.present.shape, self.present.device
        keys = torch.rand(shape, generator=generator, device=device)
        return keys.masked_fill(~self.present, 2.0).argsort(dim=1)


def as_images(inputs: Tensor) -> Tensor:
    """Images in the layout in which GPUs convolve faster."""
    if inputs.is_cuda and inputs.ndim == 4:
        return inputs.contiguous(memory_format=torch.channels_last)
    return inputs


def rounded_up(count: int) -> int:
    """The next of a few sizes, eight between a power of two and the next."""
    step = 1 << max(count.bit_length() - 4, 0)
    return -(-count // step) * step
