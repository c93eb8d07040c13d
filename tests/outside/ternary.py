"""A quantiser in a file of its own: -1, 0 or 1 times a scale for the whole message (TernGrad).

On the wire: the scale as a float32, then five numbers in a byte, as digits of base 3.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fetchsgd.wire import Coding, Reader, WireError, register_section

FORMAT = 0xF3
POWERS = 3 ** np.arange(5)
SCALE = struct.Struct("<f")


@dataclass(frozen=True, eq=False)
class Trits:
    """What one client sends."""

    scale: float
    trits: Tensor  # int8: -1, 0 or 1

    @property
    def count(self) -> int:
        return len(self.trits)

    def floats(self) -> Tensor:
        return self.scale * self.trits.float()

    def section_bytes(self) -> float:
        return float(section_bytes(self.count))

    def coding(self) -> Coding:
        return Coding(FORMAT)

    def write(self, coding: Coding) -> bytes:  # noqa: ARG002
        digits = self.trits.cpu().numpy() + 1
        digits = np.pad(digits, (0, -len(digits) % 5)).reshape(-1, 5)
        return SCALE.pack(self.scale) + (digits @ POWERS).astype(np.uint8).tobytes()


def section_bytes(count: int) -> int:
    return SCALE.size + -(-count // 5)


def read_trits(reader: Reader, format: int, count: int) -> tuple[Trits, Coding]:
    (scale,) = SCALE.unpack(reader.take(SCALE.size, "a scale"))
    packed = np.frombuffer(reader.take(-(-count // 5), "digits of base 3"), np.uint8)
    digits = (packed[:, None] // POWERS % 3).flatten()
    if not 0 <= scale < math.inf or packed.max(initial=0) >= 3**5 or digits[count:].any():
        raise WireError("a scale must be finite, and digits of base 3 filled up with zeros")
    return Trits(scale, torch.from_numpy((digits[:count] - 1).astype(np.int8))), Coding(format)


register_section(FORMAT, read_trits)


@dataclass(frozen=True, eq=False)
class TernaryRows:
    """What a cohort sends."""

    scales: Tensor
    trits: Tensor

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return weights @ self.dequantise()

    def dequantise(self) -> Tensor:
        return self.scales[:, None] * self.trits.float()

    def section_bytes(self) -> Tensor:
        n, count = self.trits.shape
        return torch.full((n,), float(section_bytes(count)), dtype=torch.float64)

    def row(self, index: int) -> Trits:
        return Trits(float(self.scales[index]), self.trits[index])


@dataclass(frozen=True)
class Ternary:
    """A number is kept in the mean. `stretch`: the scale, relative to the largest number."""

    stretch: float = 1.0

    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1 <= self.stretch < math.inf:
            raise ValueError(f"upload.stretch must be at least 1, got {self.stretch}")

    def round_rows(self, rows: Tensor, key: int, clients: Tensor) -> TernaryRows:
        scales = self.stretch * rows.abs().amax(dim=1)
        draws = torch.stack([draw(key, client, rows.shape[1]) for client in clients.tolist()])
        kept = draws.to(rows.device) * scales[:, None] < rows.abs()
        return TernaryRows(scales, (kept * rows.sign()).to(torch.int8))

    def fixed_bytes(self, count: int) -> int | None:
        return section_bytes(count)

    def reads(self, format: int) -> bool:
        return format == FORMAT

    def most_bytes(self, count: int) -> int:
        return section_bytes(count)


def draw(key: int, client: int, count: int) -> Tensor:
    """Numbers from 0 to 1 of one client in one round."""
    return torch.from_numpy(np.random.default_rng([key, client]).random(count, np.float32))
