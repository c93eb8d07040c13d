"""The walk on a GPU, in one launch: every program walks through the whole log for its own
coordinates.
"""

from __future__ import annotations

import torch
from jaxtyping import Int32, UInt8
from torch import Tensor

from fetchsgd.launch import launch
from fetchsgd.server.grids.step_log import Stage
from fetchsgd.server.grids.walk_programs import walk_back
from fetchsgd.wire.chunk_loops import CHUNK, PAGE

TILE = 4096  # coordinates of a program; pages have whole ones
SPAN = 64  # entries that it takes at once


def add_up(
    dim: int,
    stages: list[Stage],
    change: Int32[Tensor, "rows pages 256"],
    chunks: UInt8[Tensor, "rows chunks"],
) -> None:
    """As `_add_up` in walk.py."""
    if not stages:
        return
    device, count = change.device, len(stages)
    indices = torch.cat([stage.entry.indices for stage in stages])
    steps = torch.cat([stage.entry.steps for stage in stages])
    about = torch.tensor([[row, len(entry.indices), last] for row, entry, last in stages]).T
    rows, lengths, ends = about.contiguous().to(device, non_blocking=True)
    # Entries of an update are in order of coordinate, so a tile's share of it is a range.
    base = dim * torch.arange(count, device=device)
    stage = torch.bucketize(
        torch.arange(len(indices), device=device), lengths.cumsum(0), right=True
    )
    keys = indices + dim * stage
    tiles = -(-dim // TILE)
    edges = (torch.arange(tiles + 1, device=device) * TILE).clamp(max=dim)
    bounds = torch.searchsorted(keys, base[:, None] + edges, out_int32=len(keys) < 1 << 31)
    total = torch.zeros(dim, dtype=torch.int32, device=device)
    filled = torch.zeros(chunks.shape[1], dtype=torch.int32, device=device)
    launch(
        walk_back, (tiles,),
        total, filled, change, chunks, indices, steps, bounds, rows, ends, count, tiles,
        chunks.shape[1], change.shape[1], SPAN=SPAN, CHUNKS=TILE // CHUNK, PAGE=PAGE, num_warps=1,
    )  # fmt: skip
