"""The rotation on a GPU: cuda_programs.py, in one pass over memory. Nothing waits for it."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float32, Int32
from torch import Tensor

from fetchsgd.launch import launch
from fetchsgd.quantisers.level_layout import num_runs
from fetchsgd.sums.kernels import cuda_programs as programs
from fetchsgd.sums.layout import Layout

LOG_NEAR = 6  # neighbouring rows whose butterflies a thread does before it hands them on: 2^6
LOG_SOME = 4  # rows that a program loads or stores at once: 2^4
CELLS = 1 << 15  # of a program: what the registers and the shared memory of a processor hold
WARPS = 16
RUNS = 4  # of random words, of a program


def words(stream: int, count: int, key: int, device: torch.device) -> Int32[Tensor, " words"]:
    """The first random words of a stream."""
    out = torch.empty(count, dtype=torch.int32, device=device)
    low = key & 0xFFFFFFFF
    # Both halves as signed numbers: Triton then takes any key for an int32.
    halves = low - (1 << 32) if low >> 31 else low, key >> 32
    if count:
        grid = (-(-num_runs(count) // RUNS),)
        launch(programs.fill_words, grid, out, stream, *halves, count, RUNS=RUNS)
    return out


def rotate(
    rows: Float32[Tensor, "n count"], signs: Int32[Tensor, " words"], layout: Layout
) -> Float32[Tensor, "n cells"]:
    """Signs, then the Hadamard matrix of each block."""
    out = torch.empty(len(rows), layout.cells, dtype=torch.float32, device=rows.device)
    _rotate(out, rows, signs, layout, back=False)
    return out


def rotate_back(
    rows: Float32[Tensor, "n cells"], signs: Int32[Tensor, " words"], layout: Layout
) -> Float32[Tensor, "n count"]:
    """The Hadamard matrix, which is its own inverse, then signs."""
    out = torch.empty(len(rows), layout.count, dtype=torch.float32, device=rows.device)
    _rotate(out, rows, signs, layout, back=True)
    return out


def _rotate(out: Tensor, rows: Tensor, signs: Tensor, layout: Layout, *, back: bool) -> None:
    log_rows = layout.block.bit_length() - 1
    log_near = min(log_rows, LOG_NEAR)
    log_far = log_rows - log_near
    # Fewer than 256 rows are one column, whatever its program holds.
    columns = CELLS // max(layout.block, 256)
    n, tiles = len(rows), -(-layout.blocks // columns)
    if n * tiles == 0:
        return
    launch(
        programs.rotate_tile, (n * tiles,),
        out, rows, signs, layout.count, layout.cells, layout.blocks, tiles,
        1 / math.sqrt(layout.block),
        NEAR=1 << log_near, LOG_NEAR=log_near, LOG_IN=min(log_near, LOG_SOME),
        FAR=1 << log_far, LOG_FAR=log_far, LOG_OUT=min(log_far, LOG_SOME),
        COLUMNS=columns, BACK=back, WIDE=layout.cells >= 1 << 31, num_warps=WARPS,
    )  # fmt: skip
