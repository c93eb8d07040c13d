"""What a client computes with a model and a loss of its own: any module, any form of data.

`loss(model, batch)` returns the mean over the batch, or one number for each example. Data is one
batch, a tensor, a tuple or a dictionary of tensors whose first dimension counts examples, or an
iterable of batches, such as a list or a DataLoader.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from fetchsgd.clients.constants import ConstantsCheck
from fetchsgd.clients.inner import InnerOptimizer, Rows
from fetchsgd.clients.trainer import clip_rows
from fetchsgd.errors import UserError
from fetchsgd.exchange.client import Computed
from fetchsgd.randomness import number, seeded_globals, torch_generator
from fetchsgd.runs.setup import Setup
from fetchsgd.vector import FlatModel

OwnLoss = Callable[[nn.Module, Any], Tensor]
# From a model that holds the round's weights, data and a rate: trains the model where it is, and
# returns the mean loss and the number of examples.
OwnTraining = Callable[[nn.Module, Any, float], tuple[float, int]]


@dataclass(frozen=True)
class OwnWork:
    """A client's own work in a round."""

    setup: Setup
    client: int
    round: int
    rate: float

    @property
    def model(self) -> FlatModel:
        return self.setup.model

    def by_loss(
        self,
        loss: OwnLoss,
        data: Any,
        weights: Float32[Tensor, " dim"],
        kept: Rows | None = None,
    ) -> Computed:
        """One gradient, or the local steps that the plan asks for."""
        with self._passes():
            if self.setup.config.local.is_one_gradient:
                return self._one_gradient(loss, data, weights)
            return self._local_steps(loss, data, weights, kept)

    def by_training(
        self, train: OwnTraining, data: Any, weights: Float32[Tensor, " dim"]
    ) -> Computed:
        """By steps that the user's own function takes."""
        if self.setup.config.local.is_one_gradient:
            raise UserError(
                "train takes steps of its own, and the plan asks for one gradient; make the plan "
                'with local={"epochs": 1}'
            )
        self.model.put_weights(weights)
        with self._passes():
            told = train(self.model.module, data, self.rate)
        if not isinstance(told, tuple) or len(told) != 2:
            raise UserError(f"train must return the mean loss and how many examples, got {told!r}")
        loss, examples = told
        return Computed(weights - self.model.weights(), int(examples), float(loss))

    @contextmanager
    def _passes(self) -> Iterator[None]:
        seed = number(self.seed, "model", self.round)
        with seeded_globals(seed, self.setup.device), ConstantsCheck(self.model).around_pass():
            yield

    @property
    def seed(self) -> int:
        """Of this client's own draws."""
        return number(self.setup.config.train.seed, "local", self.client)

    def _one_gradient(self, loss: OwnLoss, data: Any, weights: Float32[Tensor, " dim"]) -> Computed:
        if is_batch(data):
            vector, mean, examples = self._gradient(loss, data, weights)
        else:
            vector, mean, examples = self._mean_over_batches(loss, data, weights)
        clip = self.setup.config.local.clip
        return Computed(clip_rows(vector[None], clip)[0], examples, mean)

    def _mean_over_batches(
        self, loss: OwnLoss, batches: Iterable[Any], weights: Float32[Tensor, " dim"]
    ) -> tuple[Float32[Tensor, " dim"], float, int]:
        total, losses, examples = torch.zeros_like(weights), 0.0, 0
        for batch in batches:
            vector, mean, count = self._gradient(loss, batch, weights)
            total.add_(vector, alpha=count)
            losses, examples = losses + mean * count, examples + count
        if not examples:
            raise self._nothing()
        return total / examples, losses / examples, examples

    def _nothing(self) -> UserError:
        return UserError(f"client {self.client} has no examples; leave it out")

    def _local_steps(
        self, loss: OwnLoss, data: Any, weights: Float32[Tensor, " dim"], kept: Rows | None
    ) -> Computed:
        work, rate, local = self.setup.config.local, self.rate, weights.clone()[None]
        optimizer = InnerOptimizer(work, local, self.setup.trainer.decoupled_decay, kept)
        first: float | None = None
        examples = 0
        for pass_, batch in self._batches(data):
            vector, value, count = self._gradient(loss, batch, local[0])
            first = value if first is None else first
            examples += count if pass_ == 0 else 0
            optimizer.step(clip_rows(vector[None], work.clip), [True], rate)
            rate = rate * work.lr_decay
        if first is None:
            raise self._nothing()
        optimizer.store()
        # Few steps may not have come to all of them.
        examples = examples_in(data) if is_batch(data) else examples
        return Computed(weights - local[0], examples, first, kept)

    def _batches(self, data: Any) -> Iterator[tuple[int, Any]]:
        """The batches of all local steps, and in which pass over the data each of them is."""
        work = self.setup.config.local
        generator = torch_generator(self.seed, "local", self.round, self.setup.device)
        taken = 0
        for pass_ in itertools.count() if work.steps else range(work.epochs):
            before = taken
            for batch in local_batches(data, work.batch_size, generator, self.setup.device):
                yield pass_, batch
                taken += 1
                if taken == work.steps:
                    return
            if taken == before:
                return

    def _gradient(
        self, loss: OwnLoss, batch: Any, weights: Float32[Tensor, " dim"]
    ) -> tuple[Float32[Tensor, " dim"], float, int]:
        """The gradient of the mean loss over a batch, that loss, and the number of examples."""
        model, count = self.model, examples_in(batch)
        if not count:
            raise self._nothing()
        model.put_weights(weights)
        parameters = [p for p in model.module.parameters() if p.requires_grad]
        mean = mean_loss(loss(model.module, to_device(batch, self.setup.device)), count)
        pieces = torch.autograd.grad(mean, parameters, allow_unused=True)
        gradients = [
            torch.zeros_like(own) if piece is None else piece
            for piece, own in zip(pieces, parameters, strict=True)
        ]
        vector = torch.cat([gradient.flatten().float() for gradient in gradients])
        if decay := self.setup.trainer.weight_decay:
            vector.add_(weights, alpha=decay)
        return vector, float(mean.detach()), count


def mean_loss(loss: Any, count: int) -> Tensor:
    """One number, or a sentence about what the loss returned instead."""
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        raise UserError(
            "loss(model, batch) must return a tensor that follows from the model's weights, got "
            f"{'a tensor that does not' if isinstance(loss, Tensor) else repr(loss)}"
        )
    if loss.ndim == 0:
        return loss.float()
    if loss.shape != (count,):
        raise UserError(
            "loss(model, batch) must return the mean over the batch, or one number for each of "
            f"its {count} examples, got the shape {tuple(loss.shape)}"
        )
    return loss.float() @ torch.full((count,), 1 / count, device=loss.device)


def is_batch(data: Any) -> bool:
    """Whether it is one batch, and not many."""
    return isinstance(data, Tensor | tuple | Mapping) or not isinstance(data, Iterable)


def local_batches(
    data: Any, size: int, generator: torch.Generator, device: torch.device
) -> Iterator[Any]:
    """The batches of one local epoch, in a random order where there is one batch to cut."""
    if not is_batch(data):
        if size:
            raise UserError(
                "local.batch_size cuts a client's data into batches, but the data comes in batches "
                "already; leave it out"
            )
        yield from data
        return
    count = examples_in(data)
    if not size or size >= count:
        yield data
        return
    # As clients/batches.py orders them.
    order = torch.rand((1, count), generator=generator, device=device).argsort(dim=1)[0]
    for start in range(0, count, size):
        yield taken(data, order[start : start + size])


def examples_in(batch: Any) -> int:
    """The length of the first tensor."""
    for tensor in tensors_in(batch):
        if tensor.ndim:
            return len(tensor)
    raise UserError(
        "a batch must be a tensor, or a tuple, list or dictionary of tensors whose first dimension "
        f"counts examples, got {type(batch).__name__}"
    )


def tensors_in(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from tensors_in(part)
    elif isinstance(batch, tuple | list):
        for part in batch:
            yield from tensors_in(part)


def to_device(batch: Any, device: torch.device) -> Any:
    return mapped(batch, lambda tensor: tensor.to(device))


def taken(batch: Any, rows: Tensor) -> Any:
    return mapped(batch, lambda tensor: tensor[rows.to(tensor.device)])


def mapped(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same batch with each tensor changed."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(part, change) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(part, change) for part in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(mapped(part, change) for part in batch)
    return batch
