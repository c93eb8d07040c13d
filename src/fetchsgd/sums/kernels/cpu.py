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

WIDTH = 400  # columns of a strip, at most; fewer are moved in pieces that are too short
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
    _rotate(out, rows, signs, layout, back=False)
    return out


def rotate_back(
    rows: Float32[Tensor, "n cells"], signs: Int32[Tensor, " words"], layout: Layout
) -> Float32[Tensor, "n count"]:
    """The Hadamard matrix, which is its own inverse, then signs."""
    out = torch.empty(len(rows), layout.count)
    _rotate(out, rows, signs, layout, back=True)
    return out


def _rotate(out: Tensor, rows: Tensor, signs: Tensor, layout: Layout, *, back: bool) -> None:
    target, source, (block, blocks) = out.numpy(), rows.numpy(), (layout.block, layout.blocks)
    # Bits are read four bytes at a time, the last of them behind the end.
    bits = np.append(signs.numpy(), np.int32(0)).view(np.uint8)
    scale = np.float32(1 / math.sqrt(block))
    width = _width(blocks)
    strips = len(rows) * (1 if blocks < LANES else -(-blocks // width))
    step = max(strips // (TASKS * torch.get_num_threads()), 1)

    def rotate_some(first: int) -> None:
        last = min(first + step, strips)
        if blocks < LANES:
            loops.rotate_narrow(target, source, bits, blocks, block, back, scale, first, last)
        else:
            loops.rotate_strips(
                target, source, bits, blocks, block, width, back, scale, first, last
            )

    if layout.cells:
        list(run_in_order(rotate_some, range(0, strips, step), rows.numel()))


def _width(blocks: int) -> int:
    """Columns of a strip: whole vectors, and as many strips for each thread."""
    threads = torch.get_num_threads()
    strips = -(-blocks // (WIDTH * threads)) * threads
    wanted = -(-blocks // (strips * LANES)) * LANES
    return min(wanted, blocks // LANES * LANES)
