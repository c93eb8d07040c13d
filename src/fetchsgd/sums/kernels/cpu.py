"""The rotation on a CPU: cpu_loops.py, on as many threads as torch uses. Threads change no bit."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float32, Int32
from torch import Tensor

from fetchsgd.quantisers.kernels.cpu_loops import fill_words
from fetchsgd.quantisers.level_layout import RUN, num_runs
from fetchsgd.sums.kernels import cpu_loops as loops
from fetchsgd.sums.kernels.cpu_lanes import LANES
from fetchsgd.sums.layout import Layout
from fetchsgd.threads import run_in_order

WIDTH = 96  # columns of a tile, at most; fewer are moved in pieces that are too short
TASKS = 4  # for each thread


def words(stream: int, count: int, key: int, device: torch.device) -> Int32[Tensor, " words"]:
    """The first random words of a stream."""
    out = torch.empty(num_runs(count) * RUN, dtype=torch.int32, device=device)
    fill_words(out.numpy().view(np.uint32), key, stream)
    return out[:count]


def rotate(
    rows: Float32[Tensor, "n count"], signs: Int32[Tensor, " words"], layout: Layout
) -> Float32[Tensor, "n cells"]:
    """Signs, then the Hadamard matrix of each block."""
    out = torch.empty(len(rows), layout.cells)
    _rotate(out, rows, signs, layout, loops.BEFORE)
    return out


def rotate_back(
    rows: Float32[Tensor, "n cells"], signs: Int32[Tensor, " words"], layout: Layout
) -> Float32[Tensor, "n count"]:
    """The Hadamard matrix, which is its own inverse, then signs."""
    out = torch.empty(len(rows), layout.count)
    _rotate(out, rows, signs, layout, loops.AFTER)
    return out


def _rotate(out: Tensor, rows: Tensor, signs: Tensor, layout: Layout, flips: int) -> None:
    target, source, (block, blocks) = out.numpy(), rows.numpy(), (layout.block, layout.blocks)
    words = np.append(signs.numpy(), np.zeros(2, np.int32))
    scale = np.float32(1 / math.sqrt(block))
    width = max(min(WIDTH, blocks // LANES * LANES), LANES)
    tiles = len(rows) * (1 if blocks < LANES else -(-blocks // width))
    step = max(tiles // (TASKS * torch.get_num_threads()), 1)

    def rotate_some(first: int) -> None:
        last = min(first + step, tiles)
        if blocks < LANES:
            buffer = np.empty(layout.cells, dtype=np.float32)
            loops.rotate_narrow(
                target, source, words, blocks, block, flips, scale, buffer, first, last
            )
            return
        tile = np.empty(loops.tile_cells(block, width), dtype=np.float32)
        loops.rotate_tiles(
            target, source, words, blocks, block, width, flips, scale, tile, first, last
        )

    if layout.cells:
        list(run_in_order(rotate_some, range(0, tiles, step), rows.numel()))
