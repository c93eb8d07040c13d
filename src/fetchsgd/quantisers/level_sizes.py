"""Sizes of sections of quantised cells, from how often each symbol occurs (see wire/sizes.py)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy import ndarray
from torch import Tensor

from fetchsgd.quantisers.kernels.size_loops import list_shares, table_bytes
from fetchsgd.quantisers.kernels.size_loops import stream_bytes as row_stream_bytes
from fetchsgd.quantisers.level_layout import (
    CELLS_PER_SYMBOL,
    RUN,
    cells_of_symbols,
    num_levels,
    num_runs,
    num_symbols,
)
from fetchsgd.wire.rans import TOTAL
from fetchsgd.wire.segments import SEGMENT
from fetchsgd.wire.sizes import (
    coded_bits,
    normalised,
    stream_bytes,
    table_size,
    with_symbol_table,
)

# Frequencies of cells add up to less than those of symbols, so that a product of four of them times
# TOTAL stays below 2^63.
CELL_TOTAL = 1 << 12


def packed_bytes(bits: int, count: int) -> int:
    """Scales, and cells in whole runs."""
    return num_runs(count) * (2 + RUN * bits // 8)


def quantised_bytes(
    histograms: Int64[Tensor, "n 256"], bits: int, count: int
) -> Float64[Tensor, " n"]:
    """The section of `count` cells with these symbols: packed or entropy-coded, as is smaller."""
    counts = histograms.double()
    symbols = num_symbols(count, bits)
    smallest = torch.full_like(counts[:, 0], float(packed_bytes(bits, count)))
    if count == 0:
        return smallest
    candidates = [with_symbol_table(counts)]
    if CELLS_PER_SYMBOL[bits] > 1 and symbols < SEGMENT:  # in longer ones the table hardly matters
        candidates.append(_with_cell_table(counts, bits))
    for table, coded in candidates:
        size = 2 * num_runs(count) + table + stream_bytes(symbols, coded)
        smallest = torch.minimum(smallest, size)
    return smallest


def row_bytes(counts: Int64[ndarray, " 256"], bits: int, count: int) -> float:
    """`quantised_bytes` of one message on a CPU, to the bit."""
    symbols = num_symbols(count, bits)
    if count == 0 or (CELLS_PER_SYMBOL[bits] > 1 and symbols < SEGMENT):
        return float(quantised_bytes(torch.from_numpy(counts)[None], bits, count)[0])
    shares, inverse = np.empty((2, 1, len(counts)))
    rare = list_shares(counts, shares[0])
    left = max(float(torch.from_numpy(shares).sum(dim=-1)), 1.0)
    table = table_bytes(counts, shares[0], rare, left, inverse[0])
    coded = float((torch.from_numpy(counts) * torch.from_numpy(inverse).log2()).sum(dim=-1))
    size = 2 * num_runs(count) + table + row_stream_bytes(symbols, max(coded, 0.0))
    return min(float(size), float(packed_bytes(bits, count)))


def _with_cell_table(counts: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Bytes of a table of cells, and bits of the symbols coded with it."""
    symbols, cells = _cells_on(counts.device, bits)
    of_cells = counts.new_zeros(len(counts), num_levels(bits))
    for column in cells.T:
        of_cells.index_add_(1, column, counts[:, symbols])
    of_cells = normalised(of_cells, CELL_TOTAL)
    products = of_cells[:, cells].prod(dim=2)
    used = products > 0
    rest = (TOTAL - used.sum(dim=1, keepdim=True)) / products.sum(dim=1, keepdim=True)
    frequencies = torch.zeros_like(counts)
    frequencies[:, symbols] = used + rest * products
    return table_size(of_cells), coded_bits(counts, frequencies)


@lru_cache
def _cells_on(device: torch.device, bits: int) -> tuple[Tensor, Tensor]:
    """Kept, since moving them there would wait for the device."""
    symbols, cells = cells_of_symbols(bits)
    return torch.from_numpy(symbols).to(device), torch.from_numpy(cells).to(device)
