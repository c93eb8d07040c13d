"""How good weights are: the metric and the loss of a task on its test set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float32
from torch import Tensor, nn

from fetchsgd.clients.batches import as_images
from fetchsgd.clients.trainer import Trainer
from fetchsgd.randomness import seeded_globals
from fetchsgd.tasks.base import Task, cut, totals_and_counts

# Seed of what a model draws even in eval mode: the same at each evaluation.
SEED = 0


@torch.no_grad()
def evaluate(
    trainer: Trainer, task: Task, inputs: Tensor, targets: Tensor, weights: Float32[Tensor, " dim"]
) -> tuple[float, float]:
    """The metric and the mean loss on test inputs and targets, which are where the weights are.

    The model is in eval mode, so without dropout; equal weights give equal numbers.
    """
    lengths = task.test_data.lengths
    sums = weights.new_zeros(3, dtype=torch.float64)
    parameters = trainer.parameters(weights)
    with in_eval_mode(trainer.model.module), seeded_globals(SEED, weights.device):
        for start in range(0, len(inputs), task.eval_batch):
            part = slice(start, start + task.eval_batch)
            examples, expected = inputs[part], targets[part]
            if lengths is not None:
                examples = cut(examples, int(lengths[part].max()))
            outputs = trainer.outputs(parameters, as_images(examples))
            quality = totals_and_counts(task.quality(outputs, expected))
            sums += torch.stack([*quality, task.loss(outputs, expected).sum()])
    total, count, loss = sums.tolist()  # waits for the device, once
    return task.summary(total / count), loss / len(inputs)


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Afterwards, each part of the module is in the mode in which it was before."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
