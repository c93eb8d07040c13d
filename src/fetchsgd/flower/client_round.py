"""A client's part in a round: apply the update, do the local work, say what the method sends.

A client that has lost what it held, or finds it damaged, asks for everything in one message.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fetchsgd.errors import UserError
from fetchsgd.flower.client_state import Keeper, Kept
from fetchsgd.flower.messages import Answer, ResendRequest, Work
from fetchsgd.flower.run import FederatedRun, checksum
from fetchsgd.flower.settings import read_settings
from fetchsgd.flower.versions import Held, fits, updated
from fetchsgd.flower.work import first_memory, work
from fetchsgd.methods import Memory
from fetchsgd.server.grids import StepGrid
from fetchsgd.wire import SparseUpdate, decode, encode

log = logging.getLogger("flwr.fetchsgd")


def take_part(
    task: Work,
    client: int,
    run_config: Mapping[str, Any],
    node_config: Mapping[str, Any],
    keeper: Keeper,
) -> Answer | ResendRequest:
    """Lines 6 to 8 of Algorithm 1."""
    config, federation = read_settings(run_config, node_config)
    run = FederatedRun(config, federation.clients)
    if task.digest != run.digest:
        raise UserError(
            "the server has other settings or other initial weights than this client; are the "
            "versions of fetchsgd and torch the same, and the task?"
        )
    update = decode(task.payload)
    if not isinstance(update, SparseUpdate):
        raise TypeError("the server's payload is not an update")
    kept = keeper.load()
    if kept is not None and kept.lineage != task.lineage:
        kept = None  # of another run
    held = held_of(kept, run)
    if not fits(held, update):
        return _ask(task, client, 0 if held is None else held.version)
    held, weights = updated(held, update, run.grid, run.origin)
    if checksum(weights) != task.checksum:
        if update.since == 0:
            raise ValueError("weights made from the seed and a whole update are not the server's")
        log.warning("the weights that this client held are not the server's: everything anew")
        keeper.forget()
        return _ask(task, client, 0)
    done = work(run, weights, client, task.round, task.rate, memory_of(kept, run))
    keeper.save(Kept(task.lineage, held.version, _arrays(held, done.memory)))
    return Answer(
        run.digest, task.lineage, task.round, client, done.examples, done.loss,
        encode(done.payload),
    )  # fmt: skip


def _ask(task: Work, client: int, held: int) -> ResendRequest:
    return ResendRequest(task.digest, task.lineage, task.round, client, held)


def held_of(kept: Kept | None, run: FederatedRun) -> Held | None:
    """What was kept, if it is of this model."""
    if kept is None:
        return None
    vector = _tensor(kept, "held", (run.model.dim,), run)
    wanted = torch.int32 if isinstance(run.grid, StepGrid) else torch.float32
    if vector is None or vector.dtype != wanted:
        log.warning("what this client has kept is of another model: everything anew")
        return None
    return Held(kept.version, vector)


def memory_of(kept: Kept | None, run: FederatedRun) -> Memory | None:
    """Error and momentum of the client's own, where its method keeps them."""
    first = first_memory(run.method, run.model.dim, run.device)
    if first is None or kept is None:
        return first
    found = [_tensor(kept, name, part.shape, run) for name, part in first._asdict().items()]
    whole = [part for part in found if part is not None]
    return Memory(*whole) if len(whole) == len(first) else first


def _tensor(
    kept: Kept, name: str, shape: tuple[int, ...], run: FederatedRun
) -> torch.Tensor | None:
    array = kept.vectors.get(name)
    if array is None or array.shape != tuple(shape):
        return None
    return torch.from_numpy(np.array(array)).to(run.device)


def _arrays(held: Held, memory: Memory | None) -> dict[str, np.ndarray[Any, Any]]:
    vectors = {"held": held.vector} | ({} if memory is None else memory._asdict())
    return {name: vector.cpu().numpy() for name, vector in vectors.items()}
