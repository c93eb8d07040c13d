"""Numbers in a fixed number of bits: float32, bfloat16, or levels with a scale for each run of 256.

Below 32 bits every client rounds its own numbers at random, so that the mean over the cohort stays
right and the noise averages out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from fetchsgd.quantisers import level_section
from fetchsgd.quantisers.base import RoundedRows
from fetchsgd.quantisers.level_sizes import packed_bytes
from fetchsgd.quantisers.levels import quantise_rows, round_to_bfloat16
from fetchsgd.wire import Floats
from fetchsgd.wire.sizes import floats_bytes
from fetchsgd.wire.values import FLOAT_FORMATS

Width = Literal[32, 16, 8, 6, 4, 3, 2]
WIDTHS: tuple[Width, ...] = get_args(Width)
FLOATS = {32: torch.float32, 16: torch.bfloat16}
LEVEL_FORMS = (level_section.PACKED, level_section.EXPLICIT, level_section.CELLS)
# Bits that a normally distributed number takes on the wire, its share of the scale included.
BITS_PER_NUMBER = {2: 1.18, 3: 2.24, 4: 3.37, 6: 5.49, 8: 7.52, 16: 16.0, 32: 32.0}


@dataclass(frozen=True)
class Bits:
    """`bits` for a number: 32 as they are, 16 as bfloat16, fewer as levels.

    >>> rows = torch.tensor([[1.0, -0.5, 0.25, 2.0]])  # one client's numbers
    >>> Bits(16).round_rows(rows, key=7, clients=torch.tensor([0])).section_bytes().tolist()
    [8.0]
    """

    bits: Width = 32

    def __post_init__(self) -> None:
        if self.bits not in WIDTHS or not isinstance(self.bits, int):
            choices = ", ".join(map(str, WIDTHS))
            raise ValueError(f"bits must be one of {choices}, got {self.bits!r}")

    @property
    def exact(self) -> bool:
        return self.bits == 32

    def round_rows(
        self, rows: Float32[Tensor, "n count"], key: int, clients: Int64[Tensor, " n"]
    ) -> RoundedRows:
        if self.bits == 32:
            return FloatRows(rows, torch.float32)
        if self.bits == 16:
            return FloatRows(round_to_bfloat16(rows, key, clients), torch.bfloat16)
        return quantise_rows(rows, self.bits, key, clients)

    def fixed_bytes(self, count: int) -> int | None:
        return floats_bytes(count, FLOATS[self.bits]) if self.bits in FLOATS else None

    def reads(self, format: int) -> bool:
        if self.bits in FLOATS:
            return format == FLOAT_FORMATS[FLOATS[self.bits]]
        return any(format == form + self.bits for form in LEVEL_FORMS)

    def most_bytes(self, count: int) -> int:
        fixed = self.fixed_bytes(count)
        if fixed is not None:
            return fixed
        # Entropy-coded only where that is predicted to be less, which may be off by a little.
        packed = packed_bytes(self.bits, count)
        return packed + packed // 64 + 1024


@dataclass(frozen=True, eq=False)
class FloatRows:
    """Rows whose values are exactly numbers of `dtype`, in which they are sent."""

    values: Float32[Tensor, "n count"]
    dtype: torch.dtype

    def weighted_sum(self, weights: Float32[Tensor, " n"]) -> Float32[Tensor, " count"]:
        return weights @ self.values

    def dequantise(self) -> Float32[Tensor, "n count"]:
        return self.values

    def section_bytes(self) -> Float64[Tensor, " n"]:
        n, count = self.values.shape
        return torch.full((n,), float(floats_bytes(count, self.dtype)), dtype=torch.float64)

    def row(self, index: int) -> Floats:
        return Floats(self.values[index].to(self.dtype))
