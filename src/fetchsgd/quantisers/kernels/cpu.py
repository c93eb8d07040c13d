"""Quantisation on a CPU: the loops of cpu_loops.py, on as many threads as torch uses.

A task is a stretch of runs of one row. Random numbers belong to places, and rows are added in order
within every stretch, so the number of threads changes no bit.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from fetchsgd.quantisers.kernels.cpu_loops import quantise_runs, round_runs, sum_runs
from fetchsgd.quantisers.level_layout import CELLS_PER_SYMBOL, RUN, num_runs
from fetchsgd.threads import run_in_order
from fetchsgd.wire import rans

# Runs that one task walks over.
CHUNK = 1024


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
        last = min(first + CHUNK, runs)
        quantise_runs(
            symbols[row], scales[row], rows[row], bits, per_symbol, key, ids[row], first, last
        )

    list(run_in_order(fill, product(range(n), range(0, runs, CHUNK)), cells.numel()))
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
        last = min(first + CHUNK, runs)
        sum_runs(total, *given, bits, CELLS_PER_SYMBOL[bits], first, last)

    list(run_in_order(add, range(0, runs, CHUNK), n * count))
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
        last = min(first + CHUNK, runs)
        round_runs(target[row], source[row], key, ids[row], first, last)

    list(run_in_order(fill, product(range(n), range(0, runs, CHUNK)), cells.numel()))
    return torch.from_numpy(out)
