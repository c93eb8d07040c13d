"""One step for a whole message: numbers rounded at random to whole multiples of it.

For a given number of bits the squared error is least when every number is rounded to the same step
(reverse water-filling), so one step serves the largest and the smallest layer. A large step makes
most levels zero, and the entropy coder does the rest. Levels have no bound: one huge number takes a
few bits more, and no other number loses anything.

All devices find the same step and the same levels, to the bit:

    squares   in chunks of 4096: each magnitude as a whole number of 24 bits under the exponent of
              the chunk's largest, squared, and added up. Whole numbers: the order does not matter.
    rms       chunks are brought under the largest exponent of the row and added up likewise; then
              one division and one square root in float64, which all devices round alike
    step      tau * rms to 8 significant bits, so that level * step is exact for ordinary levels;
              at most the largest bfloat16, and 0 below 2^-100
    place     x * (1 / step) * 2^24 in float32, cut to a whole number
    level     floor((place + random) / 2^24), with the random numbers of levels.py

A row that holds NaN or infinity has that as its step, and all levels 0: 0 * infinity is NaN, so
what has diverged stays visible. So do numbers within a step of the largest float32: their level
times the step may be infinite.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float32, Float64, Int, Int32, Int64
from torch import Tensor

from fetchsgd.quantisers.kernels import kernels_for
from fetchsgd.quantisers.levels import checked_cells, checked_rows
from fetchsgd.quantisers.step_layout import CHUNK_SHIFT, MOST_LEVEL
from fetchsgd.quantisers.step_section import OneStep, section_bytes
from fetchsgd.wire.chunk_statistics import Statistics, chunk_statistics

# Bits of floats: infinity, NaN, the largest bfloat16, and the smallest step, 2^-100.
INFINITY, NAN, LARGEST, SMALLEST = 0x7F800000, 0x7FC00000, 0x7F7F0000, 0x0D800000


@dataclass(frozen=True, eq=False)
class StepRows:
    """A cohort's rows as levels, each with its step."""

    steps: Float32[Tensor, " n"]
    levels: Int[Tensor, "n count"]  # int8, int16 or int32

    def row(self, index: int) -> OneStep:
        """One row, as that client alone would have rounded it."""
        return OneStep.from_levels(self.steps[index], self.levels[index])

    def weighted_sum(self, weights: Float32[Tensor, " n"]) -> Float32[Tensor, " count"]:
        """The sum of weights[i] * row i, added in order of i."""
        n = len(self.steps)
        if weights.dtype != torch.float32 or weights.shape != (n,):
            raise ValueError(
                f"weights must be float32 of shape ({n},), one for each row, "
                f"got {weights.dtype} of shape {tuple(weights.shape)}"
            )
        device = self.levels.device
        return kernels_for(device).sum_levels(self.levels, weights.detach().to(device) * self.steps)

    def dequantise(self) -> Float32[Tensor, "n count"]:
        return self.levels.float() * self.steps[:, None]

    @cached_property
    def statistics(self) -> Statistics:
        return chunk_statistics(self.levels)

    def sizes(self) -> Float64[Tensor, " n"]:
        """The mean magnitude of each row's numbers."""
        mean = self.statistics.magnitude.double() / max(self.levels.shape[1], 1)
        return self.steps.double() * mean

    def section_bytes(self) -> Float64[Tensor, " n"]:
        """The size of each row's section of a message, predicted without waiting for the device."""
        return section_bytes(self.statistics)


def rms_steps(cells: Float32[Tensor, "n count"], tau: float) -> Float32[Tensor, " n"]:
    """`tau` times the root mean square of each row, to 8 significant bits."""
    cells = checked_cells(cells)
    n, count = cells.shape
    if count == 0:
        return torch.zeros(n, dtype=torch.float32, device=cells.device)
    squares = kernels_for(cells.device).add_squares(cells)
    return _from_squares(*squares, count, tau)


def round_to_steps(
    cells: Float32[Tensor, "n count"],
    steps: Float32[Tensor, " n"],
    key: int,
    streams: Int64[Tensor, " n"],
    dtype: torch.dtype = torch.int32,
) -> StepRows:
    """Row i as multiples of steps[i], rounded by Rounding(key, streams[i]).

    Steps may come from anywhere: one for each row, or the same for all clients of a round. Rows
    that are not finite must have steps that are not (`rms_steps` gives such). `dtype` must hold
    the levels (`level_type`): beyond its largest they are cut.
    """
    cells, streams = checked_rows(cells, key, streams)
    if steps.dtype != torch.float32 or steps.shape != (len(cells),):
        raise ValueError(
            f"steps must be float32 of shape ({len(cells)},), one for each row, "
            f"got {steps.dtype} of shape {tuple(steps.shape)}"
        )
    if dtype not in MOST_LEVEL:
        raise ValueError(f"levels are int8, int16 or int32, not {dtype}")
    steps = steps.to(cells.device)
    levels = kernels_for(cells.device).round_places(cells, steps, dtype, key, streams)
    return StepRows(steps, levels)


def _from_squares(
    sums: Int64[Tensor, "n chunks"], sizes: Int32[Tensor, "n chunks"], count: int, tau: float
) -> Float32[Tensor, " n"]:
    exponents = (sizes >> 23).clamp(min=1).long()
    top = exponents.amax(dim=1, keepdim=True)
    # Without their last bits the sums of 2^23 chunks stay below 2^63.
    total = (sums >> CHUNK_SHIFT >> (2 * (top - exponents)).clamp(max=63)).sum(dim=1).double()
    # Divided by a tensor: on a GPU torch multiplies by the inverse of a plain number instead.
    root = torch.sqrt(total / torch.full_like(total, count))
    # A whole number of magnitudes has the exponent field e if its last bit stands for 2^(e - 150).
    power = (top[:, 0] - 150 + CHUNK_SHIFT // 2 + 1023 << 52).view(torch.float64)
    return rounded_steps(tau * root * power, sizes.amax(dim=1))


def rounded_steps(
    exact: Float64[Tensor, " n"], sizes: Int32[Tensor, " n"]
) -> Float32[Tensor, " n"]:
    """Steps to 8 significant bits; not finite where `sizes`, bits of magnitudes, are not."""
    bits = exact.clamp(max=torch.finfo(torch.bfloat16).max).float().view(torch.int32)
    bits = (bits + 0x8000 & -0x10000).clamp(max=LARGEST)
    bits = torch.where(bits < SMALLEST, 0, bits)
    lost = torch.where(sizes > INFINITY, NAN, INFINITY)
    return torch.where(sizes < INFINITY, bits, lost).int().view(torch.float32)
