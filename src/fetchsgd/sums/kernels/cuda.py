"""The rotation on a GPU: cuda_programs.py, in one pass over memory. Nothing waits for it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float32, Int32
from torch import Tensor

from fetchsgd.launch import launch
from fetchsgd.quantisers.level_layout import num_runs
from fetchsgd.sums.kernels.cuda_programs import fill_words, rotate_in_stages
from fetchsgd.sums.kernels.overlap_programs import rotate_overlapped
from fetchsgd.sums.kernels.whole_programs import rotate_whole
from fetchsgd.sums.layout import Layout

LANES = 128  # columns of a program, or columns times groups of rows where there are fewer
LOG_SOME = 3  # rows that a program loads or stores at once: 2^3
PER_PROCESSOR = 3  # programs at a time
REGISTERS: int | None = 128  # of a thread at most, so that as many programs fit
SPARE = 1  # chunks between two stages of one, beyond those at work
OVERLAP = 1  # whether programs ask for the next part while one is on its way (1)
WHOLE = 0  # columns of a program that holds all rows; 0: two stages
ONCE = "evict_first"  # what is read or written once makes room in the cache
KEEP = 0  # whether the cache shall forget the scratch last (1), where programs OVERLAP
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
    columns = min(1 << (layout.blocks - 1).bit_length(), WHOLE or LANES)
    tiles = -(-layout.blocks // columns)
    given = layout.count, layout.cells, layout.blocks, tiles
    shape = {
        "NEAR": 1 << log_near, "LOG_NEAR": log_near, "FAR": 1 << log_far, "LOG_FAR": log_far,
        "LOG_IN": min(log_near, LOG_SOME), "LOG_OUT": min(log_far, LOG_SOME),
        "COLUMNS": columns, "BACK": back, "WIDE": layout.cells >= 1 << 31, "ONCE": ONCE,
        "maxnreg": REGISTERS,
    }  # fmt: skip
    scale = 1 / math.sqrt(layout.block)
    if WHOLE:
        launch(
            rotate_whole, (len(rows) * tiles,), out, rows, signs, *given, scale,
            **shape, num_warps=max((columns << log_far) // 32, 1),
        )  # fmt: skip
    else:
        _in_stages(out, rows, signs, given, scale, shape)


def _in_stages(
    out: Tensor,
    rows: Tensor,
    signs: Tensor,
    given: tuple[int, int, int, int],
    scale: float,
    shape: dict[str, Any],
) -> None:
    near, far, columns = shape["NEAR"], shape["FAR"], shape["COLUMNS"]
    groups = min(LANES // columns, near, far)
    chunks = len(rows) * given[3]
    parts = (near + far) // groups
    programs = min(_processors(out.device) * PER_PROCESSOR, chunks * parts)
    # Tickets come back after as many as there are programs: then all of a chunk is done.
    turn = -(-programs // parts) + SPARE
    lag = min(turn, chunks)
    ring = min(lag + turn + 1, chunks)
    scratch = torch.empty(ring * near * far * columns, dtype=torch.float32, device=out.device)
    done = torch.zeros(1 + 2 * chunks, dtype=torch.int32, device=out.device)
    shape |= {"GROUPS": groups, "num_warps": max(groups * columns // 32, 1)}
    launch(
        rotate_overlapped if OVERLAP else rotate_in_stages, (programs,),
        out, rows, signs, scratch, done, *given, chunks, lag, ring, scale,
        **shape, **({"KEEP": KEEP} if OVERLAP else {}),
    )  # fmt: skip


@lru_cache
def _processors(device: torch.device) -> int:
    if device.type == "cpu":  # Triton's interpreter
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
