"""Algorithm 1's loop. Everything that a round changes is in a `Training`, which is a value.

Evaluation, logging and checkpoints look at what `train_rounds` yields; none is in the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.methods import Memory, Method, State
from fetchsgd.server.grids import Grid, Position
from fetchsgd.server.ledger import Ledger


@dataclass(frozen=True)
class Training:
    """Where a run stands after `round` rounds."""

    round: int
    position: Position  # the weights, and where they are on their grid
    state: State
    ledger: Ledger
    memory: Memory | None = None  # of all clients, for methods whose clients remember

    @property
    def weights(self) -> Float32[Tensor, " dim"]:
        return self.position.weights


@dataclass(frozen=True)
class Merged:
    """What the server has of a cohort: the mean of what was sent, and what it cost."""

    mean: Tensor
    numbers_up: int | Tensor  # sent by all clients of the cohort together
    bytes_up: float | Tensor  # the same on the wire
    loss: Float32[Tensor, ""]  # their mean loss before the round

    def and_also(self, more: Merged) -> Merged:
        """Two parts of a cohort, with shares that sum to one over both."""
        return Merged(
            self.mean + more.mean,
            self.numbers_up + more.numbers_up,
            self.bytes_up + more.bytes_up,
            self.loss + more.loss,
        )


# (weights, cohort, rate, round, memory) -> merged; memory is updated in place
ClientsAtWork = Callable[[Tensor, NDArray[np.int64], float, int, Memory | None], Merged]


def train_rounds(
    training: Training,
    rounds: int,
    choose: Callable[[int], NDArray[np.int64]],
    rate_of: Callable[[int], float],
    clients: ClientsAtWork,
    method: Method,
    grid: Grid,
    server_rate: float | None = None,
) -> Iterator[tuple[Training, Merged]]:
    """Yield the training after every round. `server_rate` replaces the rate on the server."""
    for t in range(training.round, rounds):
        cohort = choose(t)  # line 4
        rate = rate_of(t)
        ledger = training.ledger
        ledger.download(cohort, t, training.position)  # line 6
        merged = clients(training.weights, cohort, rate, t, training.memory)  # lines 5 to 10
        step = rate if server_rate is None else server_rate
        training = after_round(training, merged, step, method, grid)
        yield training, merged


def after_round(
    training: Training, merged: Merged, rate: float, method: Method, grid: Grid
) -> Training:
    """The server's part of a round, once it has what the cohort sent."""
    ledger = training.ledger
    ledger.upload(merged.numbers_up, merged.bytes_up)
    deliver = grid.deliver(training.position)
    update, state = method.step(merged.mean, training.state, rate, deliver)  # lines 11 to 14
    position = grid.move(training.position, update)  # line 15
    ledger.update(update, training.round + 1)
    return Training(training.round + 1, position, state, ledger, training.memory)
