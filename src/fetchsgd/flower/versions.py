"""The version of the model that a client holds, and what an update makes of it (line 6).

On grids of whole steps a client keeps n, and its weights follow; else it keeps the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.server.downloads import FloatDownloads, StepDownloads
from fetchsgd.server.grids import Grid, Position, StepGrid
from fetchsgd.server.ledger import Ledger
from fetchsgd.wire import Floats, Integers, SparseUpdate


@dataclass(frozen=True)
class Held:
    """A version, and the vector that it stands for: n on a grid of whole steps, else weights."""

    version: int
    vector: Tensor


def fits(held: Held | None, update: SparseUpdate) -> bool:
    """Whether the update can be applied to what a client holds.

    New values may also overwrite newer ones; steps must be added to just the version they change.
    """
    if update.since == 0:
        return True
    if held is None:
        return False
    if isinstance(update.values, Integers):
        return held.version == update.since
    return update.since <= held.version <= update.round


def updated(
    held: Held | None, update: SparseUpdate, grid: Grid, origin: Float32[Tensor, " dim"]
) -> tuple[Held, Float32[Tensor, " dim"]]:
    """What the client holds then, and its weights. `origin` is w^0, which everybody can make."""
    if update.dim != len(origin):
        raise ValueError(f"the update is for {update.dim} weights, the model has {len(origin)}")
    indices = update.indices.to(origin.device)
    if isinstance(grid, StepGrid):
        if not isinstance(update.values, Integers):
            raise TypeError("an update of weights on a grid of steps must hold whole steps")
        start = torch.zeros(len(origin), dtype=torch.int32, device=origin.device)
        steps = (start if update.since == 0 or held is None else held.vector).clone()
        steps[indices] += update.values.values.to(steps.device, torch.int32)
        return Held(update.round, steps), grid.weights_at(steps)
    if not isinstance(update.values, Floats):
        raise TypeError("an update of weights must hold floats")
    weights = (origin if update.since == 0 or held is None else held.vector).clone()
    weights[indices] = update.values.values.to(weights.device, torch.float32)
    return Held(update.round, weights), weights


def update_since(held: int, version: int, position: Position, ledger: Ledger) -> SparseUpdate:
    """What brings a client from the version that it holds to the last one, in one message."""
    downloads = ledger.downloads
    if isinstance(downloads, StepDownloads):
        return downloads.message(held, position)
    assert isinstance(downloads, FloatDownloads)
    changed = (ledger.changed > held).nonzero().squeeze(1)
    return downloads.message(changed, position, version, held)
