"""Levels of one step as a section of a message: the step in float32, then sparse integers."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace

from jaxtyping import Float32, Float64, Int
from torch import Tensor

from fetchsgd.wire import Coding, Reader, WireError, register_section
from fetchsgd.wire.chunk_sizes import sparse_bytes
from fetchsgd.wire.chunk_statistics import Statistics
from fetchsgd.wire.sparse_integers import SPARSE_INTEGERS, SparseIntegers, read_sparse_integers

FORMAT = 0x40
STEP = struct.Struct("<f")


@dataclass(frozen=True, eq=False)
class OneStep:
    """Whole multiples of a step."""

    step: float  # exactly a float32
    levels: SparseIntegers

    @classmethod
    def from_levels(cls, step: Float32[Tensor, ""], levels: Int[Tensor, " count"]) -> OneStep:
        return cls(float(step), SparseIntegers.from_dense(levels))

    @property
    def count(self) -> int:
        return self.levels.count

    def floats(self) -> Float32[Tensor, " count"]:
        return self.levels.floats() * self.step

    @property
    def size(self) -> float:
        """The mean magnitude of the numbers."""
        return self.step * (int(self.levels.values.abs().sum()) / max(self.count, 1))

    def section_bytes(self) -> float:
        return STEP.size + self.levels.section_bytes()

    def coding(self) -> Coding:
        self.check()
        return replace(self.levels.coding(), format=FORMAT)

    def write(self, coding: Coding) -> bytes:
        return STEP.pack(self.step) + self.levels.write(replace(coding, format=SPARSE_INTEGERS))

    def check(self) -> None:
        """Refuse what no honest client sends: before encoding, and after decoding."""
        if not 0 <= self.step < math.inf or math.copysign(1, self.step) < 0:
            raise ValueError(f"a step must be finite and not negative, got {self.step}")
        if self.step == 0 and len(self.levels.indices):
            raise ValueError("with a step of 0 all levels must be 0")


def section_bytes(found: Statistics) -> Float64[Tensor, " n"]:
    """Predicted sizes of rows whose levels have these statistics."""
    return STEP.size + sparse_bytes(found)


def _read(reader: Reader, format: int, count: int) -> tuple[OneStep, Coding]:
    if format != FORMAT:
        raise WireError(f"there is no values format {format:#x}")
    (step,) = STEP.unpack(reader.take(STEP.size, "a step"))
    levels, coding = read_sparse_integers(reader, SPARSE_INTEGERS, count)
    found = OneStep(step, levels)
    found.check()
    return found, replace(coding, format=FORMAT)


for _format in range(FORMAT, FORMAT + 16):
    register_section(_format, _read)
