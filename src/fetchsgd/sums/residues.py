"""Levels modulo 2^b as a section of a message.

    4 bytes   the step, a float32               8 bytes   the key of the round's rotation
    4 bytes   the weight, modulo 2^32           then      cells of b bits, the lowest bit first

The format byte is 0x60 plus b modulo 16. With masks, cells and weight are any numbers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int32
from torch import Tensor

from fetchsgd.sums.layout import Layout
from fetchsgd.sums.pack_loops import pack, unpack
from fetchsgd.sums.public_step import STEPS
from fetchsgd.sums.rotation import rotate_back, signs_of
from fetchsgd.wire import Coding, Reader, WireError, register_section

HEAD = struct.Struct("<fIQ")
FORMATS = {bits: 0x60 + bits % 16 for bits in range(4, 17)}
BITS_OF = {format: bits for bits, format in FORMATS.items()}


def section_bytes(layout: Layout, bits: int) -> int:
    return HEAD.size + (layout.cells * bits + 7) // 8


@dataclass(frozen=True, eq=False)
class Residues:
    """One client's numbers, or the sum of some clients'."""

    layout: Layout
    bits: int
    step: float  # exactly a float32
    key: int
    weight: int
    cells: Int32[Tensor, " cells"]  # from 0 to 2^bits - 1

    @property
    def count(self) -> int:
        return self.layout.count

    def floats(self) -> Float32[Tensor, " count"]:
        """The mean that the cells stand for, if none has wrapped and no mask is on them."""
        half = 1 << self.bits - 1
        centred = ((self.cells + half & 2 * half - 1) - half).float()
        scaled = centred * (self.step / max(self.weight, 1))
        signs = signs_of(self.layout, self.key, scaled.device)
        return rotate_back(scaled[None], signs, self.layout)[0]

    def section_bytes(self) -> float:
        return float(section_bytes(self.layout, self.bits))

    def coding(self) -> Coding:
        self._check()
        return Coding(FORMATS[self.bits])

    def write(self, coding: Coding) -> bytes:  # noqa: ARG002
        out = np.empty((self.layout.cells * self.bits + 7) // 8, dtype=np.uint8)
        pack(self.cells.cpu().contiguous().numpy(), self.bits, out)
        return HEAD.pack(self.step, self.weight, self.key) + out.tobytes()

    def _check(self) -> None:
        if self.bits not in FORMATS:
            raise ValueError(f"cells have from 4 to 16 bits, not {self.bits}")
        if not STEPS[0] <= self.step <= STEPS[1]:
            raise ValueError(f"a step is from 2^-100 to 2^100, not {self.step!r}")
        if not 0 <= self.key < 1 << 63 or not 0 <= self.weight < 1 << 32:
            raise ValueError("the key is below 2^63, and the weight below 2^32")
        if self.layout != Layout.of(self.layout.count) or len(self.cells) != self.layout.cells:
            raise ValueError("there must be a cell for each number, in whole blocks")
        if bool(((self.cells < 0) | (self.cells >> self.bits > 0)).any()):
            raise ValueError(f"cells of {self.bits} bits must be below {1 << self.bits}")


def _read(reader: Reader, format: int, count: int) -> tuple[Residues, Coding]:
    if format not in BITS_OF:
        raise WireError(f"there are no cells of {format & 15} bits in format {format:#x}")
    bits, layout = BITS_OF[format], Layout.of(count)
    step, weight, key = HEAD.unpack(reader.take(HEAD.size, "step, weight and key"))
    packed = reader.take((layout.cells * bits + 7) // 8, "packed cells")
    cells = np.empty(layout.cells, dtype=np.int32)
    if unpack(np.frombuffer(packed, dtype=np.uint8), bits, cells):
        raise WireError("the last byte of cells must be filled up with zeros")
    found = Residues(layout, bits, step, key, weight, torch.from_numpy(cells))
    found._check()
    return found, Coding(format)


for _format in range(0x60, 0x70):  # reading says which of them there are
    register_section(_format, _read)
