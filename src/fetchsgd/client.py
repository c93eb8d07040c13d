"""A client's own work: one gradient (Algorithm 1, line 7), or several steps on its own data.

Methods that are linear need only the weighted mean over the cohort, which is one backward pass.
Others need every client's own vector; client_gradients.py finds those of many clients at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from fetchsgd.client_gradients import ClientGradients
from fetchsgd.tasks.base import Loss
from fetchsgd.vector import FlatModel


@dataclass(frozen=True)
class LocalWork:
    """What a client does with its data.

    epochs: 0 sends one gradient over all its data; else that many passes of SGD, and it sends the
        difference of the weights. batch_size: 0 takes all of a client's data in one step.
    lr_decay: factor on the learning rate from each local step to the next.
    clip: longest gradient that a client sends or steps along; 0 is no limit.
    """

    epochs: int = 0
    batch_size: int = 0
    lr_decay: float = 1.0
    clip: float = 0.0

    @property
    def is_one_gradient(self) -> bool:
        return self.epochs == 0

    @property
    def is_one_step(self) -> bool:
        """One step over all data: the difference is the rate times the gradient."""
        return self.epochs == 1 and self.batch_size == 0


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

    def part(self, chosen: slice) -> Cohort:
        return Cohort(
            self.inputs[chosen], self.targets[chosen], self.present[chosen], self.weights[chosen]
        )


@dataclass(frozen=True)
class Trainer:
    """The model, its loss and what is added to it."""

    model: FlatModel
    loss: Loss
    weight_decay: float = 0.0
    compute_dtype: torch.dtype = torch.float32

    def mean_gradient(
        self, weights: Float32[Tensor, " dim"], cohort: Cohort
    ) -> tuple[list[Tensor], Float32[Tensor, ""]]:
        """The cohort's weighted mean gradient in pieces, and its mean loss: one backward pass."""
        parameters = [view.detach().requires_grad_() for view in self.model.views(weights)]
        with torch.autocast(weights.device.type, self.compute_dtype, self._mixed):
            outputs = self.model(parameters, cohort.examples)
        losses = self.loss(outputs.float(), cohort.targets.flatten(0, 1))
        share = cohort.weights / cohort.present.sum(dim=1)
        loss = losses @ (share[:, None] * cohort.present).flatten()
        gradients = list(torch.autograd.grad(loss, parameters))
        if self.weight_decay:
            for gradient, view in zip(gradients, parameters, strict=True):
                gradient.add_(view.detach(), alpha=self.weight_decay)
        return gradients, loss.detach()

    def client_vectors(
        self,
        weights: Float32[Tensor, " dim"],
        cohort: Cohort,
        work: LocalWork,
        rate: float,
        generator: torch.Generator,
    ) -> tuple[Float32[Tensor, "n dim"], Float32[Tensor, " n"]]:
        """Each client's gradient or difference, and its loss before any step."""
        if work.is_one_gradient:
            gradients, losses = self._gradients(weights, cohort)
            return clip_rows(self._decayed(gradients, weights), work.clip), losses
        return self._local_steps(weights, cohort, work, rate, generator)

    def _local_steps(
        self,
        weights: Float32[Tensor, " dim"],
        cohort: Cohort,
        work: LocalWork,
        rate: float,
        generator: torch.Generator,
    ) -> tuple[Float32[Tensor, "n dim"], Float32[Tensor, " n"]]:
        """FedAvg's inner loop for all clients side by side: w - w_i after the local epochs."""
        most = cohort.present.shape[1]
        size = min(work.batch_size or most, most)
        local = weights  # a step from shared weights costs half of one from many
        first_losses: Tensor | None = None
        for _ in range(work.epochs):
            order = shuffled(cohort.present, generator) if size < most else None
            for start in range(0, most, size):
                batch = cohort if order is None else take(cohort, order[:, start : start + size])
                gradients, losses = self._gradients(local, batch)
                first_losses = losses if first_losses is None else first_losses
                gradients = clip_rows(self._decayed(gradients, local), work.clip)
                # A client that has no examples left in this epoch stands still.
                active = batch.present.any(dim=1)
                local = local - (rate * active)[:, None] * gradients
                rate = rate * work.lr_decay
        assert first_losses is not None
        return weights - local, first_losses

    def _decayed(self, gradients: Float32[Tensor, "n dim"], weights: Tensor) -> Tensor:
        return gradients + self.weight_decay * weights if self.weight_decay else gradients

    @cached_property
    def _gradients(self) -> ClientGradients:
        return ClientGradients(self.model, self.loss, self.compute_dtype)

    @property
    def _mixed(self) -> bool:
        return self.compute_dtype != torch.float32


def as_images(inputs: Tensor) -> Tensor:
    """Images in the layout in which GPUs convolve faster."""
    if inputs.is_cuda and inputs.ndim == 4:
        return inputs.contiguous(memory_format=torch.channels_last)
    return inputs


def clip_rows(vectors: Float32[Tensor, "n dim"], longest: float) -> Float32[Tensor, "n dim"]:
    """Shorten each row to the given length; 0 leaves them as they are."""
    if not longest:
        return vectors
    norms = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    clipped: Tensor = vectors * (longest / norms.clamp(min=longest))
    return clipped


def shuffled(present: Bool[Tensor, "n m"], generator: torch.Generator) -> Tensor:
    """A random order of each client's examples, absent ones last."""
    keys = torch.rand(present.shape, generator=generator, device=present.device)
    return keys.masked_fill(~present, 2.0).argsort(dim=1)


def take(cohort: Cohort, columns: Tensor) -> Cohort:
    """Some examples of each client."""
    rows = torch.arange(len(columns), device=columns.device)[:, None]
    return Cohort(
        cohort.inputs[rows, columns],
        cohort.targets[rows, columns],
        cohort.present[rows, columns],
        cohort.weights,
    )
