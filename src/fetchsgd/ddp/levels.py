"""Cells as whole levels of a public step, several of them in a byte or a word that can be summed.

Neither NCCL nor gloo can add numbers of 4 or 16 bits. But numbers that stay below a power of two
when all workers' are added need no more room than that, so several of them lie side by side in one
unsigned number: 4 bits twice in a byte, 8 bits once, 16 bits twice in an int32, of which the
upper half leaves the sign alone. Sums of whole numbers are exact, in any order.

Every rank rounds at random to the same step, which nobody sends: it follows from what ranks have
seen together. It grows while more than a few cells are beyond what a level can say, and shrinks
else. What is beyond is cut off. The fewer levels there are, the more cells may be: with a step that
suits the largest of them, rounding to -1, 0 and 1 would be noise above all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from jaxtyping import Float32, Int
from torch import Tensor

from fetchsgd.errors import UserError
from fetchsgd.quantisers.kernels import kernels_for

# bits -> in what they are summed, and how far a sum may reach
ROOM = {4: (torch.uint8, 15), 8: (torch.uint8, 255), 16: (torch.int32, 2**15 - 1)}
# The share of cells beyond the largest level: at least, and where that is 1. With one in ten, four
# workers with 4 bits train as with 8 (docs/ddp.md); with one in a thousand they were far behind.
CLIPPED, CLIPPED_AT_ONE = 1e-3, 0.1
GROW, SHRINK = 1.25, 0.98
# The largest level in terms of the cells' root mean square: at least and at most.
LEAST, MOST = 1.0, 256.0


@dataclass(frozen=True)
class Levels:
    """Of so many bits for each cell's sum over `world` workers."""

    bits: int
    world: int

    def __post_init__(self) -> None:
        if self.most < 1:
            raise UserError(
                f"bits={self.bits} has room for {ROOM[self.bits][1] // 2} workers, "
                f"and there are {self.world}; use more bits"
            )

    @property
    def most(self) -> int:
        """The largest level of a worker: as many as all of them can add up to without a carry."""
        return ROOM[self.bits][1] // (2 * self.world)

    @property
    def clipped(self) -> float:
        """The share of cells that may be cut off."""
        return max(CLIPPED, CLIPPED_AT_ONE / math.sqrt(self.most**3))

    @property
    def rule(self) -> tuple[float, ...]:
        """The numbers of `next_step`; the first step is as if cells were normal."""
        first = NormalDist().inv_cdf(1 - self.clipped / 2)
        return self.clipped, first, GROW, SHRINK, LEAST, MOST

    def pack(
        self, cells: Float32[Tensor, " cols"], step: Float32[Tensor, ""], key: int, rank: int
    ) -> tuple[Int[Tensor, " packed"], Float32[Tensor, ""]]:
        """What a worker adds, and the share of its cells that were cut off."""
        most = self.most * step
        clipped = (cells.abs() > most).float().mean()
        inside = cells.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp_(-most, most)
        stream = torch.full((1,), rank, dtype=torch.int64, device=cells.device)
        levels = kernels_for(cells.device).round_places(
            inside[None], step[None], torch.int16, key, stream
        )[0]
        return self._join(levels.clamp_(-self.most, self.most) + self.most), clipped

    def unpack(
        self,
        total: Int[Tensor, " packed"],
        step: Float32[Tensor, ""],
        cols: int,
        workers: int | None = None,
    ) -> Float32[Tensor, " cols"]:
        """The sum of all workers' cells, or of so many workers'."""
        workers = self.world if workers is None else workers
        return (self._split(total)[:cols] - self.most * workers).float() * step

    def _join(self, fields: Int[Tensor, " cols"]) -> Int[Tensor, " packed"]:
        if self.bits == 8:
            return fields.to(torch.uint8)
        if len(fields) % 2:
            fields = torch.nn.functional.pad(fields, (0, 1))
        low, high = fields.to(ROOM[self.bits][0]).view(-1, 2).unbind(1)
        return low + high * (1 << self.bits)

    def _split(self, total: Int[Tensor, " packed"]) -> Int[Tensor, " cells"]:
        if self.bits == 8:
            return total.int()
        low, high = total & (1 << self.bits) - 1, total >> self.bits
        return torch.stack([low, high], dim=1).flatten().int()

    def next_step(
        self, step: Float32[Tensor, ""], clipped: Float32[Tensor, ""], rms: Float32[Tensor, ""]
    ) -> Float32[Tensor, ""]:
        """From the share that was cut off and the size of cells, as all workers have them."""
        allowed, first, grow, shrink, least, most = self.rule
        unit = rms / self.most
        moved = step * torch.where(clipped > allowed, grow, shrink)
        moved = torch.minimum(torch.maximum(moved, least * unit), most * unit)
        return torch.where(step > 0, moved, first * unit)
