"""Tries a task before a run: sentences for what does not fit together, and a note for what is slow.

Two examples go through model, loss and quality, so that a mistake shows before the first round, and
in words of the task rather than of a matrix product deep inside the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.clients.batches import Cohort, as_images
from fetchsgd.clients.trainer import Trainer
from fetchsgd.errors import UserError
from fetchsgd.randomness import seeded_globals
from fetchsgd.tasks.base import ClientData, Clients, Task, cross_entropy
from fetchsgd.tasks.checks import checked_losses, checked_quality
from fetchsgd.trees import Tree, leaves, tree_map

IGNORED = -100  # torch's cross entropy leaves such targets out
SEED = 0
MOST_TIMES, ENOUGH_SECONDS = 5, 1.0


@torch.no_grad()
def check_task(
    trainer: Trainer,
    weights: Float32[Tensor, " dim"],
    task: Task,
    data: Clients,
    test: tuple[Tree, Tree],
) -> None:
    """Refuse a task whose parts do not fit together. `data` and `test` are on the device."""
    rows = np.arange(min(int(data.sizes[0]), 2))
    inputs, targets = data.read(rows)
    with seeded_globals(SEED, weights.device):
        with explained(f"model of the task {task.name!r} cannot take inputs of {seen(inputs)}"):
            outputs = trainer.outputs(trainer.parameters(weights), as_images(inputs))
        check_labels(task, outputs, data, test)
        given = f"outputs of {seen(outputs)} and targets of {seen(targets)}"
        with explained(f"loss of the task {task.name!r} cannot take {given}"):
            losses = task.loss(outputs, targets)
        with explained(f"quality of the task {task.name!r} cannot take {given}"):
            quality = task.quality(outputs, targets)
    checked_losses(losses, len(rows))
    checked_quality(quality, len(rows))


def check_labels(task: Task, outputs: Tree, data: Clients, test: tuple[Tree, Tree]) -> None:
    """Labels out of range: a GPU would say no more than that something failed, somewhere."""
    if task.loss is not cross_entropy or not isinstance(outputs, Tensor) or outputs.ndim < 2:
        return
    classes = outputs.shape[1]
    held = {"the test set": test[1]}
    if isinstance(data, ClientData):
        held["the task's clients"] = data.targets
    for whose, targets in held.items():
        if not isinstance(targets, Tensor) or targets.dtype != torch.int64:
            continue
        wrong = ((targets < 0) | (targets >= classes)) & (targets != IGNORED)
        if bool(wrong.any()):
            raise UserError(
                f"targets of {whose} hold the label {int(targets[wrong][0])}, but the model of the "
                f"task {task.name!r} has {classes} outputs per example; labels must be from 0 to "
                f"{classes - 1}"
            )


@contextmanager
def explained(what: str) -> Iterator[None]:
    """What torch says of a mistake, behind what we know of it."""
    try:
        yield
    except (torch.OutOfMemoryError, UserError):
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{what}: {reason}") from error


def seen(tree: Tree) -> str:
    """Shapes and types, as a sentence shows them."""

    def describe(part: Any) -> str:
        if isinstance(part, Tensor):
            return f"{tuple(part.shape)} {str(part.dtype).removeprefix('torch.')}"
        return type(part).__name__

    if isinstance(tree, Tensor):
        return f"shape {describe(tree)}"
    if isinstance(tree, dict):
        return ", ".join(f"{name} {seen(part)}" for name, part in tree.items())
    return ", ".join(leaves(tree_map(describe, tree))) or type(tree).__name__


# --- what it costs that clients cannot be computed at once


def batching_note(trainer: Trainer, weights: Float32[Tensor, " dim"], cohort: Cohort) -> str | None:
    """A sentence if these clients must be computed one after another, with what that costs."""
    with trainer.training_pass(SEED, weights.device):
        reason = trainer.why_one_by_one(weights, cohort)
        if reason is None:
            return None
        each = _seconds(lambda: trainer.one_after_another(weights, cohort), weights.device)
        once = _seconds(lambda: trainer.backward(weights, cohort.batch), weights.device)
    clients = len(cohort.present)
    return (
        f"clients are computed one after another, since {reason}; for {clients} of them that "
        f"takes {1000 * each:.3g} ms, and {1000 * once:.3g} ms where a method needs only their "
        f"sum: {each / once:.1f} times as long"
    )


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    """The shortest of a few times: libraries set themselves up at the first."""
    times: list[float] = []
    while len(times) < MOST_TIMES and sum(times) < ENOUGH_SECONDS:
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - start)
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
