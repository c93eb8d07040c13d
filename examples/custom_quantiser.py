"""A quantiser of your own: a byte for each number that a client sends, and one scale for them all.

    cd examples && fetchsgd train digits --set quantiser=custom_quantiser:Bytes --set levels=15

A number becomes a whole number of steps, rounded up or down at random so that its mean stays right.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fetchsgd.wire import Coding, Reader, WireError, register_section

FORMAT = 0xF0  # in the header of messages; 0xF0 to 0xFF are for quantisers outside the package


@dataclass(frozen=True, eq=False)
class ByteValues:
    """The numbers of one message."""

    step: float
    whole: Tensor  # int8

    @property
    def count(self) -> int:
        return len(self.whole)

    def floats(self) -> Tensor:
        return self.step * self.whole.float()

    def section_bytes(self) -> float:
        return 4.0 + self.count

    def coding(self) -> Coding:
        return Coding(FORMAT)

    def write(self, coding: Coding) -> bytes:  # noqa: ARG002 (there is only one)
        return struct.pack("<f", self.step) + self.whole.cpu().numpy().tobytes()


def read(reader: Reader, format: int, count: int) -> tuple[ByteValues, Coding]:
    (step,) = struct.unpack("<f", reader.take(4, "a step"))
    if not 0 <= step < math.inf:
        raise WireError(f"a step must be finite and at least 0, got {step}")
    whole = np.frombuffer(reader.take(count, "whole steps"), np.int8)
    return ByteValues(step, torch.from_numpy(whole.copy())), Coding(format)


register_section(FORMAT, read)


@dataclass(frozen=True, eq=False)
class ByteRows:
    """What a simulated cohort sends, a row for each client."""

    steps: Tensor
    whole: Tensor

    def dequantise(self) -> Tensor:
        return self.steps * self.whole.float()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return weights @ self.dequantise()

    def section_bytes(self) -> Tensor:
        return torch.full((len(self.whole),), 4.0 + self.whole.shape[1], dtype=torch.float64)

    def row(self, index: int) -> ByteValues:
        return ByteValues(float(self.steps[index]), self.whole[index])


@dataclass(frozen=True)
class Bytes:
    """`levels`: so many steps are the largest number. A field is an option, checked by its type."""

    levels: Literal[127, 63, 31, 15, 7, 3, 1] = 127
    exact = False  # numbers do not arrive as they are

    def round_rows(self, rows: Tensor, key: int, clients: Tensor) -> ByteRows:
        draws = [np.random.default_rng([key, client]) for client in clients.tolist()]
        up = np.stack([draw.random(rows.shape[1], np.float32) for draw in draws])
        steps = rows.abs().amax(dim=1, keepdim=True) / self.levels
        whole = torch.floor(rows / steps.clamp(min=1e-38) + torch.from_numpy(up).to(rows))
        return ByteRows(steps, whole.clamp(-self.levels, self.levels).to(torch.int8))

    def most_bytes(self, count: int) -> int:
        return 4 + count

    fixed_bytes = most_bytes  # whatever the numbers are

    def reads(self, format: int) -> bool:
        return format == FORMAT
