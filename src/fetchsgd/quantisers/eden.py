"""EDEN (Vargaftik et al., 2022), with DRIVE (2021) as its case of one bit: for comparison.

A message is cut into blocks, each rotated at random (eden_rotation.py). The numbers of
a rotated block are nearly normal, whatever they were before, so the best few values for normal
numbers (Lloyd and Max) suit all of them. The receiver multiplies by

    scale = |x|^2 / <rotated x, its values>

and rotates back: the component along x is then exactly right, and by symmetry the mean of the rest
is zero. Below one bit a random part of each rotated block is sent, in one bit a number.

The random numbers follow from the key of the round and the client, and the message says both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Float64, Int64, UInt8
from torch import Tensor

from fetchsgd.quantisers.eden_rotation import (
    BLOCK,
    Shape,
    centroids,
    decode,
    hadamard,
    random_parts,
)
from fetchsgd.quantisers.eden_section import FORMATS, EdenMessage, section_bytes
from fetchsgd.quantisers.levels import checked_rows, round_to_bfloat16

# Words and rotations of this many numbers are in memory at once.
AT_ONCE = 1 << 26
MOST_BITS = 4


@dataclass(frozen=True)
class Eden:
    """`rate` bits for a number: 1 to 4, or less than 1.

    >>> rows = torch.randn(1, 8192, generator=torch.Generator().manual_seed(0))
    >>> rounded = Eden(rate=1.0).round_rows(rows, key=7, clients=torch.tensor([0]))
    >>> rounded.section_bytes().item() < 8192 / 8 + 64
    True
    """

    rate: float = 1.0

    exact = False

    def __post_init__(self) -> None:
        whole = self.rate in range(1, MOST_BITS + 1)
        if not whole and not 1 / BLOCK <= self.rate < 1:
            raise ValueError(
                f"rate must be 1, 2, 3, 4 or a number from 1/{BLOCK} to 1 of bits, "
                f"got {self.rate!r}"
            )

    def round_rows(
        self, rows: Float32[Tensor, "n count"], key: int, clients: Int64[Tensor, " n"]
    ) -> EdenRows:
        rows, clients = checked_rows(rows, key, clients)
        shape = Shape.of(rows.shape[1], self.rate)
        step = max(AT_ONCE // max(rows.shape[1], 1), 1)
        parts = [
            _encode(rows[i : i + step], shape, key, clients[i : i + step])
            for i in range(0, len(rows), step)
        ]
        if not parts:
            parts = [_encode(rows, shape, key, clients)]
        scales, codes = (torch.cat(each) for each in zip(*parts, strict=True))
        return EdenRows(shape, key, clients, scales, codes)

    def fixed_bytes(self, count: int) -> int:
        return section_bytes(Shape.of(count, self.rate))

    def reads(self, format: int) -> bool:
        return format == FORMATS[Shape.of(1, self.rate).bits]

    def most_bytes(self, count: int) -> int:
        return self.fixed_bytes(count)


@dataclass(frozen=True, eq=False)
class EdenRows:
    """A cohort's messages, side by side."""

    shape: Shape
    key: int
    clients: Int64[Tensor, " n"]
    scales: Float32[Tensor, "n blocks"]
    codes: UInt8[Tensor, "n blocks kept"]

    def weighted_sum(self, weights: Float32[Tensor, " n"]) -> Float32[Tensor, " count"]:
        total = torch.zeros(self.shape.count, dtype=torch.float32, device=self.scales.device)
        step = max(AT_ONCE // max(self.shape.count, 1), 1)
        for i in range(0, len(self.scales), step):
            total += weights[i : i + step] @ self._decoded(slice(i, i + step))
        return total

    def dequantise(self) -> Float32[Tensor, "n count"]:
        return self._decoded(slice(None))

    def section_bytes(self) -> Float64[Tensor, " n"]:
        size = float(section_bytes(self.shape))
        return torch.full((len(self.scales),), size, dtype=torch.float64)

    def row(self, index: int) -> EdenMessage:
        client = int(self.clients[index])
        scales, codes = self.scales[index], self.codes[index]
        return EdenMessage(self.shape, self.key, client, scales, codes)

    def _decoded(self, rows: slice) -> Float32[Tensor, "n count"]:
        return decode(self.shape, self.key, self.clients[rows], self.scales[rows], self.codes[rows])


def _encode(
    rows: Float32[Tensor, "n count"], shape: Shape, key: int, clients: Int64[Tensor, " n"]
) -> tuple[Float32[Tensor, "n blocks"], UInt8[Tensor, "n blocks kept"]]:
    """Scales and which of the few values stands for each number that is sent."""
    blocks = shape.in_blocks(rows)
    first, second, kept = random_parts(shape, key, clients)
    rotated = hadamard(hadamard(blocks * first) * second)
    length = blocks.double().square().sum(dim=-1)
    unit = torch.sqrt(length / shape.block).clamp(min=1e-300)
    sent = rotated if kept is None else rotated.gather(2, kept)
    table = torch.tensor(centroids(shape.bits), dtype=torch.float32, device=rows.device)
    edges = (table[1:] + table[:-1]) / 2
    codes = torch.bucketize((sent / unit[..., None]).float(), edges)
    along = (sent.double() * table[codes].double()).sum(dim=-1)
    usable = (along > 0) & (length < torch.inf)
    scale = torch.where(usable, length / torch.where(usable, along, 1.0), 0.0)
    # What has diverged stays visible.
    scale = torch.where(length.isfinite(), scale, torch.nan)
    return round_to_bfloat16(scale.float(), key, clients), codes.to(torch.uint8)
