"""The rotation on a GPU: cuda_programs.py, in one pass over memory. Nothing waits for it."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from jaxtyping import Float32, Int32
from torch import Tensor

from fetchsgd.launch import launch
from fetchsgd.quantisers.level_layout import num_runs
from fetchsgd.sums.kernels.cuda_programs import fill_words, rotate_chunks
from fetchsgd.sums.layout import Layout

LANES = 128  # columns of a program, or columns times groups of rows where there are fewer
LOG_SOME = 3  # rows that a program loads or stores at once: 2^3
PER_PROCESSOR = 3  # programs at a time
REGISTERS = 128  # of a thread at most, so that as many programs fit
SPARE = 1  # chunks between two stages of one, beyond those at work
RUNS = 4  # of random words, of a program


def words(stream: int, count: int, key: int, device: torch.device) -> Int32[Tensor, " words"]:
    """The first random words of a stream."""
    out = torch.empty(count, dtype=torch.int32, device=device)
    low = key & 0xFFFFFFFF
    # Both halves as signed numbers: Triton then takes any key for an int32.
    halves = low - (1 << 32) if low >> 31 else low, key >> 32
    if count:
        grid = (-(-num_runs(count) // RUNS),)
        launch(fill_words, grid, out, stream, *halves, count, RUNS=RUNS)
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
    if out.numel() == 0:
        return
    log_rows = layout.block.bit_length() - 1
    log_near = (log_rows + 1) // 2
    log_far = log_rows - log_near
    near, far = 1 << log_near, 1 << log_far
    columns = min(1 << (layout.blocks - 1).bit_length(), LANES)
    groups = min(LANES // columns, near, far)
    tiles = -(-layout.blocks // columns)
    chunks = len(rows) * tiles
    parts = (near + far) // groups
    programs = min(_processors(out.device) * PER_PROCESSOR, chunks * parts)
    # Tickets come back after as many as there are programs: then all of a chunk is done.
    turn = -(-programs // parts) + SPARE
    lag = min(turn, chunks)
    ring = min(lag + turn + 1, chunks)
    scratch = torch.empty(ring * near * far * columns, dtype=torch.float32, device=out.device)
    done = torch.zeros(1 + 2 * chunks, dtype=torch.int32, device=out.device)
    launch(
        rotate_chunks, (programs,),
        out, rows, signs, scratch, done, layout.count, layout.cells, layout.blocks, tiles,
        chunks, lag, ring, 1 / math.sqrt(layout.block),
        NEAR=near, LOG_NEAR=log_near, FAR=far, LOG_FAR=log_far,
        LOG_IN=min(log_near, LOG_SOME), LOG_OUT=min(log_far, LOG_SOME),
        GROUPS=groups, COLUMNS=columns, BACK=back, WIDE=layout.cells >= 1 << 31,
        num_warps=max(groups * columns // 32, 1), maxnreg=REGISTERS,
    )  # fmt: skip


@lru_cache
def _processors(device: torch.device) -> int:
    if device.type == "cpu":  # Triton's interpreter
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
