"""A real client's work in a round: the same as a simulated one's, up to the payload that it sends.

Rounding and dropout are by the same random numbers as in simulation. The order of local batches,
augmentation and whatever else a model draws are by numbers of the client's own: in a simulated
cohort these depend on who else takes part.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.clients.gathering import DropoutSeed, Gatherer
from fetchsgd.clients.inner import Rows
from fetchsgd.errors import UserError
from fetchsgd.exchange.client import Computed, Done, as_sent
from fetchsgd.methods import Memory
from fetchsgd.randomness import number, torch_generator
from fetchsgd.runs.setup import Setup


def row_of(client: int, num_clients: int) -> int:
    """Where a client's data is in its task: a task with one client holds that client's alone."""
    if num_clients == 1:
        return 0
    if not 0 <= client < num_clients:
        raise UserError(
            f"partition-id is {client}, but the task has clients 0 to {num_clients - 1}"
        )
    return client


def compute(
    setup: Setup,
    weights: Float32[Tensor, " dim"],
    client: int,
    round: int,
    rate: float,
    kept: Rows | None = None,
) -> Computed:
    """Line 7 of Algorithm 1. `kept`: what its optimiser remembers, updated in place."""
    task, train = setup.config.task, setup.config.train
    own = task.train.only(row_of(client, task.train.num_clients)).to(setup.device)
    seed = number(train.seed, "local", client)
    draws = DropoutSeed(train.seed, client)
    gatherer = Gatherer(own, train.averaging, seed, task.augment, setup.trainer.graphs, draws)
    cohort = gatherer.gather(np.array([0]), round)
    generator = torch_generator(seed, "local", round, setup.device)
    vectors, losses = setup.trainer.client_vectors(
        weights, cohort, setup.config.local, rate, generator, number(seed, "model", round), kept
    )
    return Computed(vectors[0], int(own.sizes[0]), float(losses[0]), kept)


def work(
    setup: Setup,
    weights: Float32[Tensor, " dim"],
    client: int,
    round: int,
    rate: float,
    memory: Memory | None,
    size: float = 0.0,
) -> Done:
    """Lines 7 and 8."""
    computed = compute(setup, weights, client, round, rate)
    return as_sent(setup, computed, client, round, memory, size)
