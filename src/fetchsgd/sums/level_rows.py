"""A cohort's levels, side by side: as a sum, as numbers again, or as one client's message."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Float64, Int16, Int32, Int64
from torch import Tensor

from fetchsgd.quantisers.kernels import kernels_for
from fetchsgd.sums.layout import Layout
from fetchsgd.sums.residues import Residues, section_bytes
from fetchsgd.sums.rotation import rotate_back

# Rows of 16 bits whose sums are whole numbers that a float32 has.
EXACT_ROWS = 256


@dataclass(frozen=True, eq=False)
class LevelRows:
    """A cohort's levels, side by side, before they are taken modulo 2^b."""

    layout: Layout
    levels: Int16[Tensor, "n cells"]
    examples: Int64[Tensor, " n"]
    clipped: Int64[Tensor, ""]  # cells
    signs: Int32[Tensor, " words"]
    bits: int
    key: int  # of the rotation
    step: Float32[Tensor, ""]

    def sum(self) -> Int64[Tensor, " cells"]:
        sums = kernels_for(self.levels.device).sum_levels
        ones = torch.ones(EXACT_ROWS, device=self.levels.device)
        total = torch.zeros(self.layout.cells, dtype=torch.int64, device=self.levels.device)
        for first in range(0, len(self.levels), EXACT_ROWS):
            part = self.levels[first : first + EXACT_ROWS]
            total += sums(part, ones[: len(part)]).long()
        return total

    def dequantise(self) -> Float32[Tensor, "n count"]:
        cells = self.levels.float() * (self.step / self.examples.float())[:, None]
        return rotate_back(cells, self.signs, self.layout)

    def weighted_sum(self, weights: Float32[Tensor, " n"]) -> Float32[Tensor, " count"]:
        return weights @ self.dequantise()

    def section_bytes(self) -> Float64[Tensor, " n"]:
        size = float(section_bytes(self.layout, self.bits))
        return torch.full((len(self.levels),), size, dtype=torch.float64)

    def row(self, index: int) -> Residues:
        """One client's message."""
        cells = self.levels[index].int() & (1 << self.bits) - 1
        weight = int(self.examples[index])
        return Residues(self.layout, self.bits, float(self.step), self.key, weight, cells)
