"""Quantisation on a GPU: cuda_programs.py and step_programs.py. Nothing waits for the device."""

from __future__ import annotations

import torch
from jaxtyping import Float32, Int, Int32, Int64, UInt8
from torch import Tensor

from fetchsgd.launch import launch
from fetchsgd.quantisers.kernels import cuda_programs as programs
from fetchsgd.quantisers.kernels import step_programs
from fetchsgd.quantisers.level_layout import CELLS_PER_SYMBOL, RUN, num_runs, top_level
from fetchsgd.quantisers.step_layout import CHUNK, MOST_LEVEL, num_chunks

# Runs that one program rounds.
RUNS = 8
# Runs that one program adds up, and rows that it reads at once.
SUM_RUNS = 4
ROWS_AT_ONCE = 4
# Columns of levels that one program adds up, and rows that it reads at once.
SUM_BLOCK, LEVEL_ROWS = 512, 8
# Symbols that are counted at once, and how often, before the counts go to memory.
SPAN = 2048
SPANS = 8


def quantise(
    cells: Float32[Tensor, "n count"], bits: int, key: int, streams: Int64[Tensor, " n"]
) -> tuple[Float32[Tensor, "n runs"], UInt8[Tensor, "n symbols"]]:
    """Scales and symbols of each row."""
    n, count = cells.shape
    runs, per_symbol = num_runs(count), CELLS_PER_SYMBOL[bits]
    scales = torch.empty(n, runs, dtype=torch.float32, device=cells.device)
    symbols = torch.empty(n, runs * RUN // per_symbol, dtype=torch.uint8, device=cells.device)
    tiles = -(-runs // RUNS)
    if n * tiles:
        launch(
            programs.quantise_runs, (n * tiles,),
            symbols, scales, cells, streams, *_halves(key), count, runs, tiles,
            BITS=bits, PER_SYMBOL=per_symbol, TOP=top_level(bits), RUNS=RUNS,
        )  # fmt: skip
    return scales, symbols


def weighted_sum(
    scales: Float32[Tensor, "n runs"],
    symbols: UInt8[Tensor, "n symbols"],
    bits: int,
    count: int,
    weights: Float32[Tensor, " n"],
) -> Float32[Tensor, " count"]:
    """The sum of weights[i] * row i, dequantised, in order of i."""
    n, runs = scales.shape
    total = torch.empty(count, dtype=torch.float32, device=scales.device)
    slices = RUN // CELLS_PER_SYMBOL[bits] // 64
    if count:
        launch(
            programs.sum_runs, (-(-runs // SUM_RUNS) * slices,),
            total, symbols, scales, weights, n, count, runs,
            BITS=bits, PER_SYMBOL=CELLS_PER_SYMBOL[bits], TOP=top_level(bits),
            RUNS=SUM_RUNS, AT_ONCE=ROWS_AT_ONCE, num_warps=2,
        )  # fmt: skip
    return total


def histograms(symbols: UInt8[Tensor, "n symbols"]) -> Int64[Tensor, "n 256"]:
    """How often each symbol occurs in each row."""
    n, length = symbols.shape
    counts = torch.zeros(n, 256, dtype=torch.int64, device=symbols.device)
    parts = -(-length // (SPAN * SPANS))
    if n * parts:
        launch(
            programs.count_symbols, (n * parts,),
            counts, symbols, length, parts, SPAN=SPAN, SPANS=SPANS,
        )  # fmt: skip
    return counts


def round_to_bfloat16(
    cells: Float32[Tensor, "n count"], key: int, streams: Int64[Tensor, " n"]
) -> Float32[Tensor, "n count"]:
    """Add 16 random bits to the bits of each cell, and cut."""
    n, count = cells.shape
    out = torch.empty_like(cells)
    tiles = -(-num_runs(count) // RUNS)
    if n * tiles:
        launch(
            programs.round_runs, (n * tiles,),
            out, cells, streams, *_halves(key), count, tiles, RUNS=RUNS,
        )  # fmt: skip
    return out


def _halves(key: int) -> tuple[int, int]:
    """Both halves as signed numbers: Triton then takes any key for an int32."""
    low = key & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low, key >> 32


def add_squares(
    cells: Float32[Tensor, "n count"],
) -> tuple[Int64[Tensor, "n chunks"], Int32[Tensor, "n chunks"]]:
    """Sums of squares of chunks, in whole numbers, and the bits of the largest magnitudes."""
    n, count = cells.shape
    chunks = num_chunks(count)
    sums = torch.empty(n, chunks, dtype=torch.int64, device=cells.device)
    sizes = torch.empty(n, chunks, dtype=torch.int32, device=cells.device)
    if n * chunks:
        launch(
            step_programs.add_squares, (n * chunks,),
            sums, sizes, cells, count, chunks, CHUNK=CHUNK,
        )  # fmt: skip
    return sums, sizes


def round_places(
    cells: Float32[Tensor, "n count"],
    steps: Float32[Tensor, " n"],
    dtype: torch.dtype,
    key: int,
    streams: Int64[Tensor, " n"],
) -> Int[Tensor, "n count"]:
    """Levels of each row, by its step."""
    n, count = cells.shape
    levels = torch.empty(n, count, dtype=dtype, device=cells.device)
    tiles = -(-num_runs(count) // RUNS)
    if n * tiles:
        launch(
            step_programs.round_places, (n * tiles,),
            levels, cells, steps, streams, *_halves(key), count, tiles,
            LIMIT=float(MOST_LEVEL[dtype]) * 2.0**24, RUNS=RUNS, num_warps=2,
        )  # fmt: skip
    return levels


def sum_levels(
    levels: Int[Tensor, "n count"], steps: Float32[Tensor, " n"]
) -> Float32[Tensor, " count"]:
    """The sum of steps[i] * row i, in order of i."""
    n, count = levels.shape
    total = torch.empty(count, dtype=torch.float32, device=levels.device)
    if count:
        launch(
            step_programs.sum_levels, (-(-count // SUM_BLOCK),),
            total, levels, steps, n, count, BLOCK=SUM_BLOCK, AT_ONCE=LEVEL_ROWS,
        )  # fmt: skip
    return total
