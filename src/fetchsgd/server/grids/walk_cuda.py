"""The walk on a GPU, in one launch: every program walks through the whole log for its own
coordinates.
"""

from __future__ import annotations

import torch
from jaxtyping import Int32
from torch import Tensor

from fetchsgd.launch import launch
from fetchsgd.server.grids.step_log import Entry
from fetchsgd.server.grids.walk_programs import walk_back

TILE = 4096  # coordinates of a program
SPAN = 64  # entries that it takes at once


def add_up(dim: int, stages: list[tuple[int, Entry]], change: Int32[Tensor, "rows 256"]) -> None:
    """As `_add_up` in walk.py."""
    if not stages:
        return
    device, count = change.device, len(stages)
    indices = torch.cat([entry.indices for _, entry in stages])
    steps = torch.cat([entry.steps for _, entry in stages])
    about = torch.tensor([[row, len(entry.indices)] for row, entry in stages]).T.contiguous()
    rows, sizes = about.to(device, non_blocking=True)
    # Entries of an update are in order of coordinate, so a tile's share of it is a range.
    base = dim * torch.arange(count, device=device)
    keys = indices + base.repeat_interleave(sizes, output_size=len(indices))
    tiles = -(-dim // TILE)
    edges = (torch.arange(tiles + 1, device=device) * TILE).clamp(max=dim)
    bounds = torch.searchsorted(keys, base[:, None] + edges, out_int32=len(keys) < 1 << 31)
    total = torch.zeros(dim, dtype=torch.int32, device=device)
    launch(
        walk_back, (tiles,),
        total, change, indices, steps, bounds, rows, count, tiles, SPAN=SPAN, num_warps=1,
    )  # fmt: skip
