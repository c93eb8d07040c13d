"""Sizes of messages from a few counts, without encoding: what the simulator adds up.

All functions work on tensors of any device and never wait for one: a simulator counts thousands of
clients at once. Predictions are within half a percent of `len(encode(...))` for messages above
2 kB: they follow the encoder's own choices, and the mean of what it rounds.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from fetchsgd.quantisers.levels import CELLS_PER_SYMBOL, RUN, num_runs
from fetchsgd.wire.frequencies import CELL_TOTAL, SYMBOLS, TOTAL, cells_of_symbols, levels
from fetchsgd.wire.header import HEADER_BYTES as HEADER_BYTES
from fetchsgd.wire.position_sizes import position_bytes as position_bytes
from fetchsgd.wire.segments import SEGMENT
from fetchsgd.wire.stream_sizes import number_size, stream_bytes

FLOAT_BYTES = {torch.float32: 4, torch.float16: 2, torch.bfloat16: 2}


def floats_bytes(count: int, dtype: torch.dtype) -> int:
    """Floats as they are."""
    return count * FLOAT_BYTES[dtype]


def packed_bytes(bits: int, count: int) -> int:
    """Scales, and cells in whole runs."""
    return num_runs(count) * (2 + RUN * bits // 8)


def quantised_bytes(
    histograms: Int64[Tensor, "n 256"], bits: int, count: int
) -> Float64[Tensor, " n"]:
    """`count` cells whose symbols occur so often: packed or entropy-coded, whichever is smaller."""
    counts = histograms.double()
    symbols = num_runs(count) * RUN // CELLS_PER_SYMBOL[bits]
    smallest = torch.full_like(counts[:, 0], float(packed_bytes(bits, count)))
    if count == 0:
        return smallest
    candidates = [_explicit(counts)]
    if CELLS_PER_SYMBOL[bits] > 1 and symbols < SEGMENT:  # beyond, a table hardly matters
        candidates.append(_by_cells(counts, bits))
    for table, coded_bits in candidates:
        size = 2 * num_runs(count) + table + stream_bytes(symbols, coded_bits)
        smallest = torch.minimum(smallest, size)
    return smallest


def integer_bytes(histograms: Int64[Tensor, "n 256"]) -> Float64[Tensor, " n"]:
    """Integers whose bucket symbols occur so often; nothing where there are none."""
    counts = histograms.double()
    total = counts.sum(dim=1)
    table, bits = _explicit(counts)
    extra = (counts * _extra_bits(counts.device)).sum(dim=1) / 8
    segments = torch.ceil(total / SEGMENT)
    # Each segment begins a new byte of extra bits.
    extra = torch.where(extra > 0, extra + segments * 0.4375, extra)
    sizes = segments * number_size(extra / segments.clamp(min=1))
    return torch.where(total > 0, table + stream_bytes(total, bits, extra + sizes), 0.0)


def integer_update_candidates(
    histograms: Int64[Tensor, "n 256"], dim: int
) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
    """Positions and values of a sparse update of integers: joint, and separate."""
    separate = histograms.clone()
    separate[:, 0] = 0
    places = position_bytes(dim, separate.sum(dim=1))
    return integer_bytes(histograms), places + integer_bytes(separate)


def integer_update_bytes(histograms: Int64[Tensor, "n 256"], dim: int) -> Float64[Tensor, " n"]:
    """The smaller of both, from the bucket symbols of all `dim` coordinates, zeros included."""
    joint, separate = integer_update_candidates(histograms, dim)
    count = histograms[:, 1:].sum(dim=1)
    partly = (count > 0) & (count < dim)
    return torch.where(partly, torch.minimum(joint, separate), separate)


def bucket_symbols(values: Int64[Tensor, ...]) -> UInt8[Tensor, ...]:
    """The symbol of each integer (integers.py), on the device where it is."""
    z = (values << 1) ^ (values >> 63)
    # Shifts keep the sign, which here is the highest of 64 bits: mask it away.
    large = (z < 0) | (z >= 1 << 52)
    head = torch.where(large, (z >> 11) & ((1 << 53) - 1), z)
    top = torch.frexp(head.double()).exponent.long() - 1 + 11 * large
    below = (z >> (top - 2).clamp(min=0)) & 3
    return torch.where((z >= 0) & (z < 16), z, 4 * top + below).to(torch.uint8)


def _explicit(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes of a table of symbols, and bits of the symbols coded with it."""
    frequencies = _normalised(counts, TOTAL)
    return _table_bytes(frequencies), _coded_bits(counts, frequencies)


def _by_cells(counts: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The same with a table of cells."""
    symbols, cells = _cells_on(counts.device, bits)
    of_cells = counts.new_zeros(len(counts), levels(bits))
    for column in cells.T:
        of_cells.index_add_(1, column, counts[:, symbols])
    of_cells = _normalised(of_cells, CELL_TOTAL)
    products = of_cells[:, cells].prod(dim=2)
    used = products > 0
    rest = (TOTAL - used.sum(dim=1, keepdim=True)) / products.sum(dim=1, keepdim=True)
    frequencies = torch.zeros_like(counts)
    frequencies[:, symbols] = used + rest * products
    return _table_bytes(of_cells), _coded_bits(counts, frequencies)


@lru_cache
def _cells_on(device: torch.device, bits: int) -> tuple[Tensor, Tensor]:
    """Kept, since moving them there would wait for the device."""
    symbols, cells = cells_of_symbols(bits)
    return torch.from_numpy(symbols).to(device), torch.from_numpy(cells).to(device)


def _normalised(counts: Tensor, total: int) -> Tensor:
    """About the frequencies of an encoder; not whole numbers, but at least 1."""
    share = counts * (total / counts.sum(dim=1, keepdim=True).clamp(min=1))
    raised = torch.where(counts > 0, share.clamp(min=1), 0.0)
    # What was given to rare symbols is missing from the others.
    rare = (raised == 1).double()
    given = (raised * rare).sum(dim=1, keepdim=True)
    left = (raised * (1 - rare)).sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(rare > 0, raised, raised * (total - given) / left)


def _coded_bits(counts: Tensor, frequencies: Tensor) -> Tensor:
    bits = counts * torch.log2(TOTAL / frequencies.clamp(min=1))
    return bits.sum(dim=1).clamp(min=0)


def _table_bytes(frequencies: Tensor) -> Tensor:
    """LEB128 up to the last frequency that is not 0; two bytes for each run of zeros."""
    used = frequencies > 0
    numbers = (number_size(frequencies) * used).sum(dim=1)
    before = torch.nn.functional.pad(used, (1, 0), value=True)[:, :-1]
    more_follows = used.flip(1).cumsum(dim=1).flip(1) > 0
    return numbers + 2.0 * (~used & before & more_follows).sum(dim=1)


def _extra_bits(device: torch.device) -> Tensor:
    symbols = torch.arange(SYMBOLS, device=device)
    return torch.where(symbols < 16, 0, (symbols >> 2) - 2)
