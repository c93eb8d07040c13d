"""Algorithm 1's loop. Everything that a round changes is in a `Training`, which is a value.

Evaluation, logging and checkpoints look at what `train_rounds` yields; none is in the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.ledger import Ledger
from fetchsgd.methods import Memory, Method, State, Update
from fetchsgd.vector import SparseVector


@dataclass(frozen=True)
class Training:
    """Where a run stands after `round` rounds."""

    round: int
    weights: Float32[Tensor, " dim"]
    state: State
    ledger: Ledger
    memory: Memory | None = None  # of all clients, for methods whose clients remember


@dataclass(frozen=True)
class Merged:
    """What the server has of a cohort: the mean of what was sent, and what it cost."""

    mean: Tensor
    numbers_up: int | Tensor  # sent by all clients of the cohort together
    loss: Float32[Tensor, ""]  # their mean loss before the round


# (weights, cohort, rate, round, memory) -> merged; memory is updated in place
ClientsAtWork = Callable[[Tensor, NDArray[np.int64], float, int, Memory | None], Merged]


def train_rounds(
    training: Training,
    rounds: int,
    choose: Callable[[int], NDArray[np.int64]],
    rate_of: Callable[[int], float],
    clients: ClientsAtWork,
    method: Method,
    server_rate: float | None = None,
) -> Iterator[tuple[Training, Merged]]:
    """Yield the training after every round. `server_rate` replaces the rate on the server."""
    for t in range(training.round, rounds):
        cohort = choose(t)  # line 4
        rate = rate_of(t)
        ledger = training.ledger
        ledger.download(torch.from_numpy(cohort).to(ledger.held.device), t)  # line 6
        merged = clients(training.weights, cohort, rate, t, training.memory)  # lines 5 to 10
        ledger.upload(merged.numbers_up)
        step = rate if server_rate is None else server_rate
        update, state = method.step(merged.mean, training.state, step)  # lines 11 to 14
        weights = subtract(training.weights, update)  # line 15
        ledger.update(update, t + 1)
        training = Training(t + 1, weights, state, ledger, training.memory)
        yield training, merged


def subtract(weights: Float32[Tensor, " dim"], update: Update) -> Float32[Tensor, " dim"]:
    """W - update."""
    if isinstance(update, SparseVector):
        return weights.index_add(0, update.indices, update.values, alpha=-1)
    return weights - update
