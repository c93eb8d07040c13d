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
from fetchsgd.ranks import ALONE, Ranks
from fetchsgd.tasks.base import Task, cut, totals_and_counts
from fetchsgd.tasks.checks import checked_losses, checked_quality
from fetchsgd.trees import Tree, at, first_leaf

# Seed of what a model draws even in eval mode: the same at each evaluation.
SEED = 0


@torch.no_grad()
def evaluate(
    trainer: Trainer,
    task: Task,
    inputs: Tree,
    targets: Tree,
    weights: Float32[Tensor, " dim"],
    ranks: Ranks = ALONE,
) -> tuple[float, float]:
    """The metric and the mean loss on test inputs and targets, which are where the weights are.

    The model is in eval mode, so without dropout; equal weights give equal numbers.
    ranks: processes that share the work.
    """
    lengths, examples_in_all = task.test_data.lengths, len(first_leaf(inputs))
    sums = weights.new_zeros(3, dtype=torch.float64)
    parameters = trainer.parameters(weights)
    batch = min(task.eval_batch, -(-examples_in_all // ranks.size))
    with in_eval_mode(trainer.model.module), seeded_globals(SEED, weights.device):
        for start in range(ranks.rank * batch, examples_in_all, ranks.size * batch):
            part = slice(start, start + batch)
            examples, expected = at(inputs, part), at(targets, part)
            if lengths is not None:
                examples = cut(examples, int(lengths[part].max()))
            outputs = trainer.outputs(parameters, as_images(examples))
            examples_here = len(first_leaf(expected))
            quality = checked_quality(task.quality(outputs, expected), examples_here)
            losses = checked_losses(task.loss(outputs, expected), examples_here)
            sums += torch.stack([*totals_and_counts(quality), losses.sum()])
    total, count, loss = ranks.sum(sums).tolist()  # waits for the device, once
    return task.summary(total / count), loss / examples_in_all


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
