"""A client's own work: one gradient (Algorithm 1, line 7), or several steps on its own data.

Methods that are linear need only the weighted mean over the cohort, which is one backward pass.
Others need every client's own vector. Where a client's work alone keeps the device busy, that is
one backward pass after another; else gradients.py does many clients at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.clients.batches import Batch, Cohort
from fetchsgd.clients.constants import ConstantsCheck
from fetchsgd.clients.dropout import DrawnTwiceError, forward_is_over, keyed_dropout
from fetchsgd.clients.gradients import ClientGradients, gradients_of
from fetchsgd.clients.graphs import GraphedGradient, SharedRows
from fetchsgd.randomness import seeded_globals
from fetchsgd.tasks.base import Loss
from fetchsgd.tasks.checks import checked_losses
from fetchsgd.trees import Tree, first_leaf, to_floats
from fetchsgd.vector import FlatModel

# Examples times weights of one client, from which on it keeps the device busy by itself.
LARGE_CLIENT = 200_000_000


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
class Trainer:
    """The model, its loss and what is added to it.

    weight_decay: so many times the weights are added to each gradient, also to that of a
        parameter which the model does not use and whose gradient of the loss is zero.
    graphs: on CUDA, record backward passes. rounded: let passes see the weights in compute_dtype,
        so that what follows from them need not be rounded layer by layer.
    """

    model: FlatModel
    loss: Loss
    weight_decay: float = 0.0
    compute_dtype: torch.dtype = torch.float32
    graphs: bool = False
    rounded: bool = False

    def parameters(self, weights: Float32[Tensor, " dim"]) -> list[Tensor]:
        """The weights as the model takes them."""
        return self.model.views(weights.to(self.compute_dtype) if self.rounded else weights)

    def outputs(self, parameters: list[Tensor], examples: Tree) -> Tree:
        """What the model makes of examples, computed in the type asked for."""
        mixed = self.compute_dtype != torch.float32
        with torch.autocast(first_leaf(examples).device.type, self.compute_dtype, mixed):
            return to_floats(self.model(parameters, examples))

    def mean_gradient(
        self, weights: Float32[Tensor, " dim"], batch: Batch, seed: int
    ) -> tuple[list[Tensor], Float32[Tensor, ""]]:
        """The weighted mean gradient in pieces, and the mean loss.

        seed: of what the model draws, as for dropout.
        With graphs, the next call overwrites the gradient.
        """
        with self.training_pass(seed, weights.device):
            return self._mean_gradient(weights, batch)

    def client_vectors(
        self,
        weights: Float32[Tensor, " dim"],
        cohort: Cohort,
        work: LocalWork,
        rate: float,
        generator: torch.Generator,
        seed: int,
    ) -> tuple[Float32[Tensor, "n dim"], Float32[Tensor, " n"]]:
        """Each client's gradient or difference, and its loss before any step.

        generator: of the order of local batches. seed: of what the model draws, as for dropout.
        With graphs, the next call overwrites the gradients.
        """
        with self.training_pass(seed, weights.device):
            if work.is_one_gradient:
                gradients, losses = self._gradients(weights, cohort)
                return clip_rows(gradients, work.clip), losses
            return self._local_steps(weights, cohort, work, rate, generator)

    def why_one_by_one(self, weights: Float32[Tensor, " dim"], cohort: Cohort) -> str | None:
        """Why these clients cannot be computed at once; None if they can, or if they should not."""
        n, most = cohort.present.shape
        if n == 1 or most * self.model.dim >= LARGE_CLIENT:
            return None
        served = self._side_by_side.can_take(weights, cohort)
        return None if served else self._side_by_side.why_not

    @contextmanager
    def training_pass(self, seed: int, device: torch.device) -> Iterator[None]:
        with seeded_globals(seed, device), self._constants.around_pass():
            yield

    def _mean_gradient(
        self, weights: Float32[Tensor, " dim"], batch: Batch
    ) -> tuple[list[Tensor], Float32[Tensor, ""]]:
        if self.graphs and weights.is_cuda:
            return self._recorded(weights, batch)
        try:
            return self.backward(weights, batch)
        except DrawnTwiceError:  # torch's own draws can be repeated
            return self.backward(weights, replace(batch, keys=None))

    def backward(
        self, weights: Float32[Tensor, " dim"], batch: Batch
    ) -> tuple[list[Tensor], Float32[Tensor, ""]]:
        parameters = [view.detach().requires_grad_() for view in self.parameters(weights)]
        # Also on the way back, where a model with checkpoints computes parts of it once more.
        with self.model.holding(parameters), keyed_dropout(batch.keys):
            outputs = self.outputs(parameters, batch.examples)
            forward_is_over()
            losses = checked_losses(self.loss(outputs, batch.targets), len(batch.shares))
            loss = losses @ batch.shares
            pieces, at = gradients_of(loss, parameters), self.model.views(weights)
        if weights.is_cuda:  # copied into one: to handle hundreds of pieces takes the host longer
            pieces, at = [torch.cat([piece.flatten() for piece in pieces])], [weights]
        gradients = [piece.float() for piece in pieces]
        if self.weight_decay:
            for gradient, view in zip(gradients, at, strict=True):
                gradient.add_(view, alpha=self.weight_decay)
        return gradients, loss.detach()

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
        local = weights  # shared in the first step, which then costs half as much
        first_losses: Tensor | None = None
        step = 0
        for epoch in range(work.epochs):
            order = cohort.shuffled(generator, epoch) if size < most else None
            for start in range(0, most, size):
                batch = cohort if order is None else cohort.take(order[:, start : start + size])
                gradients, losses = self._gradients(local, batch.later(step))
                step += 1
                first_losses = losses if first_losses is None else first_losses
                gradients = clip_rows(gradients, work.clip)
                # A client that has no examples left in this epoch keeps its weights.
                active = batch.present.any(dim=1)
                local = local - (rate * active)[:, None] * gradients
                rate = rate * work.lr_decay
        assert first_losses is not None
        return weights - local, first_losses

    def _gradients(
        self, weights: Float32[Tensor, "*n dim"], cohort: Cohort
    ) -> tuple[Float32[Tensor, "n dim"], Float32[Tensor, " n"]]:
        """Of clients that share their weights, or that each have their own."""
        n, most = cohort.present.shape
        is_alone = n == 1 or most * self.model.dim >= LARGE_CLIENT
        if is_alone or not self._side_by_side.can_take(weights, cohort):
            return self.one_after_another(weights, cohort)
        # Weights that differ would have to be copied into the graph's memory, gigabytes of them.
        is_recorded = self.graphs and weights.is_cuda and weights.ndim == 1
        if is_recorded and self._side_by_side.serves_in_one_pass(weights, cohort):
            return self._recorded_side_by_side(weights, cohort)
        return self._side_by_side(weights, cohort)

    def one_after_another(
        self, weights: Float32[Tensor, "*n dim"], cohort: Cohort
    ) -> tuple[Float32[Tensor, "n dim"], Float32[Tensor, " n"]]:
        n = len(cohort.present)
        gradients, losses = weights.new_empty(n, self.model.dim), weights.new_empty(n)
        for client, own in enumerate(weights.expand(n, -1)):
            pieces, loss = self._mean_gradient(own, cohort.alone(client))
            torch.cat([piece.flatten() for piece in pieces], out=gradients[client])
            losses[client] = loss
        return gradients, losses

    @cached_property
    def _constants(self) -> ConstantsCheck:
        return ConstantsCheck(self.model)

    @cached_property
    def _side_by_side(self) -> ClientGradients:
        return ClientGradients(self.model, self.loss, self.compute_dtype, self.weight_decay)

    @cached_property
    def _recorded(self) -> GraphedGradient[Batch, list[Tensor]]:
        return GraphedGradient(self.backward)

    @cached_property
    def _recorded_side_by_side(self) -> GraphedGradient[Cohort, Tensor]:
        memory = SharedRows()

        def gradients(weights: Tensor, cohort: Cohort) -> tuple[Tensor, Tensor]:
            rows = memory.first(len(cohort.present), weights)
            return self._side_by_side.in_one_pass(weights, cohort, rows)

        return GraphedGradient(gradients)


def clip_rows(vectors: Float32[Tensor, "n dim"], longest: float) -> Float32[Tensor, "n dim"]:
    """Shorten each row to the given length; 0 leaves them as they are."""
    if not longest:
        return vectors
    norms = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    clipped: Tensor = vectors * (longest / norms.clamp(min=longest))
    return clipped
