"""Algorithm 1's loop, for simulated clients and for real ones.

Everything that a round changes is in a `Training`, which is a value. Evaluation, logging and
checkpoints look at what `train_rounds` yields (fetchsgd.runs.recorder); none is in the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.methods import Memory, Method, State
from fetchsgd.quantisers.shared_step import next_size, typical_size
from fetchsgd.server.grids import Grid, GridWeights
from fetchsgd.server.ledger import Ledger
from fetchsgd.sums import Opened


@dataclass(frozen=True)
class Training:
    """Where a run stands after `round` rounds."""

    round: int
    place: GridWeights  # the weights, and where they are on their grid
    state: State
    ledger: Ledger
    memory: Memory | None = None  # of all clients, for methods whose clients remember
    # Of the numbers that clients send, once it is known; or the step of sums modulo 2^b.
    size: Float64[Tensor, ""] | None = None

    @property
    def weights(self) -> Float32[Tensor, " dim"]:
        return self.place.weights


@dataclass(frozen=True)
class Merged:
    """What the server has received from a cohort: the mean of what was sent, and what it cost."""

    mean: Tensor
    clients: NDArray[np.int64]  # whose messages it is the mean of
    numbers_up: int | Tensor  # sent by all of them together
    bytes_up: float | Tensor  # the same on the wire
    loss: Float32[Tensor, ""]  # their mean loss before the round
    typical_loss: float | None = None  # one that a few dishonest clients cannot move
    sizes: Float64[Tensor, " n"] | None = None  # of each client's numbers, where it matters
    within: Int64[Tensor, ""] | None = None  # how many messages were within the clip, if one is set
    bytes_down: float = 0.0  # beside the model: keys and shares of secure aggregation
    opened: Opened | None = None  # of a sum modulo 2^b
    clipped: int | Tensor = 0  # cells of it that clients have clipped
    loss_is_known: bool = True  # not where the server may see nothing that noise does not cover


# Lines 4 to 10: who takes part in the round that starts from here, at which rate, and what comes
# back. The memory of simulated clients is updated in place.
Clients = Callable[[Training, float], Merged]


def train_rounds(
    training: Training,
    rounds: int,
    clients: Clients,
    rate_of: Callable[[int], float],
    method: Method,
    grid: Grid,
    server_rate: float | None = None,
    decay: float = 0.0,
    overwrite: bool = False,
) -> Iterator[tuple[Training, Merged]]:
    """Yield the training after every round.

    server_rate: replaces the rate on the server. decay: of weights, where the server adds it.
    overwrite: each round in the memory of the last, as `after_round` says.
    """
    for t in range(training.round, rounds):
        rate = rate_of(t)
        merged = clients(training, rate)  # lines 4 to 10
        step = rate if server_rate is None else server_rate
        training = after_round(training, merged, step, method, grid, decay, overwrite)
        yield training, merged


def after_round(
    training: Training,
    merged: Merged,
    rate: float,
    method: Method,
    grid: Grid,
    decay: float = 0.0,
    overwrite: bool = False,
) -> Training:
    """The server's part of a round, once it has what the cohort sent.

    overwrite: in the memory of the training that is given, which must not be used again. For large
        models: nothing as long as the weights is made beside them, where method and grid can do so.
    """
    ledger, version = training.ledger, training.round + 1
    ledger.upload(merged.clients, version, merged.numbers_up, merged.bytes_up)
    deliver = grid.deliver(training.place)
    mean = merged.mean
    if decay:
        # Messages add up, so this is as if every client had sent it.
        mean = mean + method.message.compress(decay * training.weights, training.round)
    before = training.state
    is_used = merged.opened is None or bool(merged.opened.seen.usable)
    if not is_used:
        # Nothing is known of this round: neither weights nor the server's state may move.
        mean, before = torch.zeros_like(mean), method.init(mean.device)
    step, move = method.step, grid.move
    if overwrite:
        step = getattr(method, "overwriting_step", step)
        move = getattr(grid, "overwriting_move", move)
    # Whoever records the run looks at the loss, without waiting for every round.
    sent, state = step(
        mean, before, rate, deliver, round=training.round, check_finite=False
    )  # lines 11 to 14
    state = state if is_used else training.state
    place = move(training.place, sent)  # line 15
    ledger.update(sent, version)
    ledger.wire_down.add_(merged.bytes_down)
    size = training.size
    if merged.opened is not None:
        size = merged.opened.seen.next_step
    if merged.sizes is not None and len(merged.sizes):
        size = next_size(size, typical_size(merged.sizes))
    return Training(version, place, state, ledger, training.memory, size)
