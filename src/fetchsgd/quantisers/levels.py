"""Cells rounded at random to few levels: what a client sends instead of floats.

Cells are cut into runs of 256. Each run has a scale, its largest magnitude rounded up to bfloat16,
and every cell becomes a whole level from -L to L of scale / L, with L = 2^(bits - 1) - 1. A cell
between two levels goes to the upper one with just the probability that makes its mean right.
level_layout.py says where levels lie in memory, level_section.py how a message holds them.

All devices round alike, to the bit, so that a simulated client sends what a real one would:

    size      the largest |cell| of the run, where infinity and then NaN are largest
    scale     size rounded up to bfloat16, but a finite size to a finite scale; 0 if below 2^-100
    place     cell * (L / scale) * 2^24 in float32, kept within +-L * 2^24, cut to a whole number
    level     floor((place + random) / 2^24), where `random` is the upper 24 bits of a word

The words come from Philox4x32-10 under the key (low half, high half): word w of the counter
(g, run, stream low, stream high) is that of cell g + 64 w, so it depends on key, stream and place
alone. Place and random are whole numbers because some compilers fuse a product and a sum of floats.
Under a scale that is not finite all levels are 0, and 0 * infinity is NaN: what has diverged stays
visible, without a look at the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64, UInt8
from numpy import ndarray
from torch import Tensor

from fetchsgd.quantisers import level_section as section
from fetchsgd.quantisers.kernels import kernels_for
from fetchsgd.quantisers.kernels.level_loops import add_cells, fill_cells
from fetchsgd.quantisers.level_layout import BITS, CELLS_PER_SYMBOL, RUN
from fetchsgd.quantisers.level_sizes import quantised_bytes, row_bytes
from fetchsgd.wire import Coding, Reader, register_section


class Rounding(NamedTuple):
    """Which random numbers to round by: a key for a round of training, a stream for each client."""

    key: int
    stream: int = 0


@dataclass(frozen=True, eq=False)
class Quantised:
    """`count` cells in `bits` bits each."""

    bits: int
    count: int
    scales: Float32[Tensor, " runs"]  # each exactly a bfloat16, not negative
    symbols: UInt8[Tensor, " symbols"]

    def floats(self) -> Float32[Tensor, " count"]:
        """The cells that the levels stand for: level * (scale / L)."""
        one = torch.ones(1, dtype=torch.float32, device=self.scales.device)
        return kernels_for(self.scales.device).weighted_sum(
            self.scales[None], self.symbols[None], self.bits, self.count, one
        )

    def float_rows(self, cols: int) -> Iterator[Float32[ndarray, " cols"]]:
        """`floats` by rows of so many cells, all of them in the memory of one."""
        scales, symbols, per_symbol = self._arrays()
        row = np.empty(cols, dtype=np.float32)
        for first in range(0, self.count, cols):
            fill_cells(row, symbols, scales, self.bits, per_symbol, first)
            yield row

    def add_to(self, total: Float64[ndarray, " count"], weight: float) -> None:
        """Add the cells times a weight to a sum, in place."""
        scales, symbols, per_symbol = self._arrays()
        add_cells(total, symbols, scales, self.bits, per_symbol, weight)

    def _arrays(self) -> tuple[Float32[ndarray, " runs"], UInt8[ndarray, " symbols"], int]:
        """As loops on a CPU want them."""
        return self.scales.numpy(), self.symbols.numpy(), CELLS_PER_SYMBOL[self.bits]

    def section_bytes(self) -> float:
        counts = kernels_for(self.symbols.device).histograms(self.symbols[None])
        return row_bytes(counts[0].cpu().numpy(), self.bits, self.count)

    def coding(self) -> Coding:
        section.check(self.bits, self.count, self.scales, self.symbols)
        return section.best_coding(self.bits, self.count, self.symbols)

    def write(self, coding: Coding) -> bytes:
        return section.write(self.bits, self.scales, self.symbols, coding)


@dataclass(frozen=True, eq=False)
class QuantisedRows:
    """A cohort's rows of `count` cells each, quantised side by side."""

    bits: int
    count: int
    scales: Float32[Tensor, "n runs"]
    symbols: UInt8[Tensor, "n symbols"]

    def row(self, index: int) -> Quantised:
        """One row, as that client alone would have quantised it; it shares the memory."""
        return Quantised(self.bits, self.count, self.scales[index], self.symbols[index])

    def weighted_sum(self, weights: Float32[Tensor, " n"]) -> Float32[Tensor, " count"]:
        """The sum of weights[i] * row i, dequantised, added in order of i."""
        n = len(self.scales)
        if weights.dtype != torch.float32 or weights.shape != (n,):
            raise ValueError(
                f"weights must be float32 of shape ({n},), one for each row, "
                f"got {weights.dtype} of shape {tuple(weights.shape)}"
            )
        device = self.scales.device
        return kernels_for(device).weighted_sum(
            self.scales, self.symbols, self.bits, self.count, weights.detach().to(device)
        )

    def dequantise(self) -> Float32[Tensor, "n count"]:
        """All rows: their runs, one after another, are those of one long row."""
        n, runs = self.scales.shape
        whole = Quantised(self.bits, n * runs * RUN, self.scales.flatten(), self.symbols.flatten())
        return whole.floats().view(n, runs * RUN)[:, : self.count]

    def histograms(self) -> Int64[Tensor, "n 256"]:
        """How often each symbol occurs in each row."""
        return kernels_for(self.symbols.device).histograms(self.symbols)

    def section_bytes(self) -> Float64[Tensor, " n"]:
        """The size of each row's section of a message, predicted without waiting for the device."""
        return quantised_bytes(self.histograms(), self.bits, self.count)


def quantise(cells: Float32[Tensor, " count"], bits: int, rounding: Rounding) -> Quantised:
    """Round the cells of one client at random.

    >>> message = quantise(torch.tensor([1.0, 0.0, -1.0]), bits=4, rounding=Rounding(key=7))
    >>> message.floats()
    tensor([ 1.,  0., -1.])
    """
    if not isinstance(cells, Tensor) or cells.ndim != 1:
        raise ValueError(f"cells must be a tensor with one dimension, got {_kind(cells)}")
    _check_number("stream", rounding.stream)
    streams = torch.full((1,), rounding.stream, dtype=torch.int64, device=cells.device)
    return quantise_rows(cells[None], bits, rounding.key, streams).row(0)


def quantise_rows(
    cells: Float32[Tensor, "n count"], bits: int, key: int, streams: Int64[Tensor, " n"]
) -> QuantisedRows:
    """Round the cells of many clients, row i by Rounding(key, streams[i])."""
    if bits not in BITS:
        choices = ", ".join(map(str, BITS))
        raise ValueError(f"bits must be one of {choices}, got {bits!r}")
    cells, streams = checked_rows(cells, key, streams)
    scales, symbols = kernels_for(cells.device).quantise(cells, bits, key, streams)
    return QuantisedRows(bits, cells.shape[1], scales, symbols)


def round_to_bfloat16(
    cells: Float32[Tensor, "n count"], key: int, streams: Int64[Tensor, " n"]
) -> Float32[Tensor, "n count"]:
    """Cells rounded at random to values of bfloat16, row i by Rounding(key, streams[i]).

    The mean is exactly the cell: the 16 bits cut off are the probability of the upper neighbour.
    Magnitudes beyond the largest bfloat16 become that one; infinity and NaN stay.
    """
    cells, streams = checked_rows(cells, key, streams)
    return kernels_for(cells.device).round_to_bfloat16(cells, key, streams)


def checked_rows(
    cells: Float32[Tensor, "n count"], key: int, streams: Int64[Tensor, " n"]
) -> tuple[Float32[Tensor, "n count"], Int64[Tensor, " n"]]:
    """Rows, key and streams as kernels want them; ValueError if they are none."""
    cells = checked_cells(cells)
    _check_number("key", key)
    n = len(cells)
    if not isinstance(streams, Tensor) or streams.dtype != torch.int64 or streams.shape != (n,):
        raise ValueError(
            f"streams must be an int64 tensor of shape ({n},), one for each row, "
            f"got {_kind(streams)}"
        )
    return cells, streams.to(cells.device).contiguous()


def checked_cells(cells: Float32[Tensor, "n count"]) -> Float32[Tensor, "n count"]:
    """Rows as kernels want them."""
    if not isinstance(cells, Tensor) or cells.ndim != 2:
        raise ValueError(f"cells must be a tensor of shape (n, count), got {_kind(cells)}")
    if cells.dtype != torch.float32:
        raise ValueError(f"cells must be float32, got {cells.dtype}; try cells.float()")
    return cells.detach().contiguous()


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{name} must be a whole number from 0 to 2^63 - 1, got {value!r}")


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return type(value).__name__


def _read_quantised(reader: Reader, format: int, count: int) -> tuple[Quantised, Coding]:
    bits, scales, symbols, coding = section.read(reader, format, count)
    return Quantised(bits, count, scales, symbols), coding


for _form in (section.PACKED, section.EXPLICIT, section.CELLS):
    for _bits in range(16):  # reading says which of them there are
        register_section(_form + _bits, _read_quantised)
