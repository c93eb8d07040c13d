"""A real client's work in a round: the same as a simulated one's, up to the payload that it sends.

Rounding draws the same numbers as in simulation. The order of local batches, augmentation and
dropout follow from a seed of the client's own: in a simulated cohort they depend on who else takes
part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.errors import UserError
from fetchsgd.flower.run import FederatedRun
from fetchsgd.methods import FetchSGD, LocalMethod, Memory, Method
from fetchsgd.quantisers.upload import Upload
from fetchsgd.randomness import number, torch_generator
from fetchsgd.wire import DenseVector, Payload, SketchTable, SparseUpdate


@dataclass(frozen=True)
class Done:
    """What a client sends, what the server wants to know of it, and what the client remembers."""

    payload: Payload
    examples: int
    loss: float
    memory: Memory | None


def row_of(client: int, num_clients: int) -> int:
    """Where a client's data is in its task: a task with one client holds that client's alone."""
    if num_clients == 1:
        return 0
    if not 0 <= client < num_clients:
        raise UserError(
            f"partition-id is {client}, but the task has clients 0 to {num_clients - 1}"
        )
    return client


def work(
    run: FederatedRun,
    weights: Float32[Tensor, " dim"],
    client: int,
    round: int,
    rate: float,
    memory: Memory | None,
) -> Done:
    """Lines 7 and 8 of Algorithm 1."""
    clients = run.clients
    row = row_of(client, clients.data.num_clients)
    seed = number(clients.seed, "local", client)
    cohort = replace(clients.gatherer, seed=seed).gather(np.array([row]), round)
    generator = torch_generator(seed, "local", round, weights.device)
    vectors, losses = run.trainer.client_vectors(
        weights, cohort, clients.work, rate, generator, number(seed, "model", round)
    )
    payload, memory = payload_for(run.method, vectors, client, round, clients.upload, memory)
    return Done(payload, int(clients.data.sizes[row]), float(losses[0]), memory)


def payload_for(
    method: Method,
    vectors: Float32[Tensor, "1 dim"],
    client: int,
    round: int,
    upload: Upload,
    memory: Memory | None,
) -> tuple[Payload, Memory | None]:
    """A client's vector as its method sends it."""
    if isinstance(method, LocalMethod):
        chosen, vectors, memory = method.compress_each(vectors, memory)
        places = chosen[0].nonzero().squeeze(1)
        values = upload.write(vectors[0, places], client, round)
        return SparseUpdate(vectors.shape[1], places, values, round), memory
    cells = method.compress(vectors)[0]
    values = upload.write(cells.flatten(), client, round)
    if isinstance(method, FetchSGD):
        s = method.sketch
        assert s.block is not None
        return SketchTable(s.dim, s.rows, s.cols, s.block, s.seed, values, round), memory
    return DenseVector(values, round), memory


def first_memory(method: Method, dim: int, device: torch.device) -> Memory | None:
    """What a client remembers before its first round."""
    if isinstance(method, LocalMethod) and method.keeps_memory:
        return Memory(*(torch.zeros(1, dim, device=device) for _ in range(2)))
    return None
