"""Quantisation on a CPU: cpu_loops.py and step_loops.py, on as many threads as torch uses.

A task is a stretch of runs of one row. Random numbers belong to places, and rows are added in order
within every stretch, so the number of threads changes no bit.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from jaxtyping import Float32, Int, Int32, Int64, UInt8
from torch import Tensor

from fetchsgd.quantisers.kernels import step_loops
from fetchsgd.quantisers.kernels.cpu_loops import quantise_runs, round_runs, sum_runs
from fetchsgd.quantisers.level_layout import CELLS_PER_SYMBOL, RUN, num_runs
from fetchsgd.quantisers.step_layout import CHUNK, MOST_LEVEL, num_chunks
from fetchsgd.threads import run_in_order
from fetchsgd.wire import rans

# Runs that one task walks over.
CHUNK_RUNS = 1024
# Chunks whose squares one task adds up.
CHUNKS = 64


def quantise(
    cells: Float32[Tensor, "n count"], bits: int, key: int, streams: Int64[Tensor, " n"]
) -> tuple[Float32[Tensor, "n runs"], UInt8[Tensor, "n symbols"]]:
    """Scales and symbols of each row."""
    n, count = cells.shape
    runs, per_symbol = num_runs(count), CELLS_PER_SYMBOL[bits]
    scales = np.empty((n, runs), dtype=np.float32)
    symbols = np.empty((n, runs * RUN // per_symbol), dtype=np.uint8)
    rows, ids = cells.numpy(), streams.tolist()

    def fill(task: tuple[int, int]) -> None:
        row, first = task
        last = min(first + CHUNK_RUNS, runs)
        quantise_runs(
            symbols[row], scales[row], rows[row], bits, per_symbol, key, ids[row], first, last
        )

    list(run_in_order(fill, product(range(n), range(0, runs, CHUNK_RUNS)), cells.numel()))
    return torch.from_numpy(scales), torch.from_numpy(symbols)


def weighted_sum(
    scales: Float32[Tensor, "n runs"],
    symbols: UInt8[Tensor, "n symbols"],
    bits: int,
    count: int,
    weights: Float32[Tensor, " n"],
) -> Float32[Tensor, " count"]:
    """The sum of weights[i] * row i, dequantised, in order of i."""
    n, runs = scales.shape
    total = np.empty(runs * RUN, dtype=np.float32)
    given = (symbols.numpy(), scales.numpy(), weights.numpy())

    def add(first: int) -> None:
        last = min(first + CHUNK_RUNS, runs)
        sum_runs(total, *given, bits, CELLS_PER_SYMBOL[bits], first, last)

    list(run_in_order(add, range(0, runs, CHUNK_RUNS), n * count))
    return torch.from_numpy(total[:count])


def histograms(symbols: UInt8[Tensor, "n symbols"]) -> Int64[Tensor, "n 256"]:
    """How often each symbol occurs in each row."""
    rows = list(run_in_order(rans.histogram, symbols.numpy(), symbols.numel()))
    return torch.from_numpy(np.array(rows, dtype=np.int64).reshape(-1, 256))


def round_to_bfloat16(
    cells: Float32[Tensor, "n count"], key: int, streams: Int64[Tensor, " n"]
) -> Float32[Tensor, "n count"]:
    """Add 16 random bits to the bits of each cell, and cut."""
    n, count = cells.shape
    runs = num_runs(count)
    out = np.empty((n, count), dtype=np.float32)
    source, target, ids = cells.numpy().view(np.uint32), out.view(np.uint32), streams.tolist()

    def fill(task: tuple[int, int]) -> None:
        row, first = task
        last = min(first + CHUNK_RUNS, runs)
        round_runs(target[row], source[row], key, ids[row], first, last)

    list(run_in_order(fill, product(range(n), range(0, runs, CHUNK_RUNS)), cells.numel()))
    return torch.from_numpy(out)


def add_squares(
    cells: Float32[Tensor, "n count"],
) -> tuple[Int64[Tensor, "n chunks"], Int32[Tensor, "n chunks"]]:
    """Sums of squares of chunks, in whole numbers, and the bits of the largest magnitudes."""
    n, count = cells.shape
    chunks = num_chunks(count)
    sums = np.zeros((n, chunks), dtype=np.int64)
    sizes = np.zeros((n, chunks), dtype=np.int32)
    rows = cells.numpy().view(np.int32)

    def fill(task: tuple[int, int]) -> None:
        row, begin = task
        for chunk in range(begin, min(begin + CHUNKS, chunks)):
            part = rows[row, chunk * CHUNK : (chunk + 1) * CHUNK]
            sums[row, chunk], sizes[row, chunk] = step_loops.add_squares(part)

    list(run_in_order(fill, product(range(n), range(0, chunks, CHUNKS)), cells.numel()))
    return torch.from_numpy(sums), torch.from_numpy(sizes)


def round_places(
    cells: Float32[Tensor, "n count"],
    steps: Float32[Tensor, " n"],
    dtype: torch.dtype,
    key: int,
    streams: Int64[Tensor, " n"],
) -> Int[Tensor, "n count"]:
    """Levels of each row, by its step."""
    n, count = cells.shape
    runs = num_runs(count)
    levels = torch.zeros(n, count, dtype=dtype)
    target, rows, ids, sizes = levels.numpy(), cells.numpy(), streams.tolist(), steps.numpy()

    def fill(task: tuple[int, int]) -> None:
        row, first = task
        step = sizes[row]
        if 0 < step < np.inf:
            factor, top = np.float32(1) / step, MOST_LEVEL[dtype]
            last = min(first + CHUNK_RUNS, runs)
            step_loops.round_places(target[row], rows[row], factor, top, key, ids[row], first, last)

    list(run_in_order(fill, product(range(n), range(0, runs, CHUNK_RUNS)), cells.numel()))
    return levels


def sum_levels(
    levels: Int[Tensor, "n count"], steps: Float32[Tensor, " n"]
) -> Float32[Tensor, " count"]:
    """The sum of steps[i] * row i, in order of i."""
    n, count = levels.shape
    total = np.empty(count, dtype=np.float32)
    given = (levels.numpy(), steps.numpy())

    def add(first: int) -> None:
        step_loops.sum_levels(total, *given, first, min(first + RUN * CHUNK_RUNS, count))

    list(run_in_order(add, range(0, count, RUN * CHUNK_RUNS), n * count))
    return torch.from_numpy(total)
