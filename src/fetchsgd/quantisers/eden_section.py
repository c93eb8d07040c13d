"""EDEN's numbers as a section of a message: key, client, scales, and codes of few bits.

    8 bytes   the key of the round                      2 bytes   numbers sent of each block, less 1
    8 bytes   the client
    then      a bfloat16 for each block, and the codes, the lowest bit first

The format byte is 0x50 plus the bits of a code.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from fetchsgd.quantisers.eden_rotation import Shape, decode
from fetchsgd.wire import Coding, Reader, WireError, register_section

HEAD = struct.Struct("<QQH")
FORMATS = {bits: 0x50 + bits for bits in (1, 2, 3, 4)}
INFINITY = 0x7F80


def section_bytes(shape: Shape) -> int:
    return HEAD.size + 2 * shape.blocks + _code_bytes(shape)


def _code_bytes(shape: Shape) -> int:
    return (shape.blocks * shape.kept * shape.bits + 7) // 8


@dataclass(frozen=True, eq=False)
class EdenMessage:
    """One client's numbers."""

    shape: Shape
    key: int
    client: int
    scales: Float32[Tensor, " blocks"]  # each exactly a bfloat16, not negative
    codes: UInt8[Tensor, "blocks kept"]

    @property
    def count(self) -> int:
        return self.shape.count

    def floats(self) -> Float32[Tensor, " count"]:
        clients = torch.tensor([self.client], device=self.scales.device)
        return decode(self.shape, self.key, clients, self.scales[None], self.codes[None])[0]

    def section_bytes(self) -> float:
        return float(section_bytes(self.shape))

    def coding(self) -> Coding:
        self._check()
        return Coding(FORMATS[self.shape.bits])

    def write(self, coding: Coding) -> bytes:  # noqa: ARG002
        halves = (self.scales.cpu().contiguous().view(torch.int32).numpy() >> 16).astype("<u2")
        codes = self.codes.cpu().numpy().ravel()
        bits = codes[:, None] >> np.arange(self.shape.bits, dtype=np.uint8) & 1
        packed = np.packbits(bits.ravel(), bitorder="little")
        head = HEAD.pack(self.key, self.client, self.shape.kept - 1)
        return head + halves.tobytes() + packed.tobytes()

    def _check(self) -> None:
        shape = self.shape
        expected = (shape.blocks,), (shape.blocks, shape.kept)
        if (tuple(self.scales.shape), tuple(self.codes.shape)) != expected:
            raise ValueError("there must be a scale for each block and a code for each number sent")
        bits = self.scales.contiguous().view(torch.int32)
        if bool(((bits < 0) | (bits >= INFINITY << 16) | (bits & 0xFFFF != 0)).any()):
            raise ValueError("scales must be finite bfloat16 numbers that are not negative")
        if bool((self.codes >= 1 << shape.bits).any()):
            raise ValueError(f"codes of {shape.bits} bits must be below {1 << shape.bits}")


def _read(reader: Reader, format: int, count: int) -> tuple[EdenMessage, Coding]:
    bits = format & 0x0F
    if bits not in FORMATS:
        raise WireError(f"there are no codes of {bits} bits in format {format:#x}")
    key, client, kept = HEAD.unpack(reader.take(HEAD.size, "key, client and block"))
    shape = Shape(count, bits, kept + 1)
    if max(key, client) >= 1 << 63 or shape.kept > shape.block:
        raise WireError("key and client are below 2^63, and a block sends no more than it has")
    if bits > 1 and shape.kept < shape.block:
        raise WireError("a part of each block is sent in one bit a number only")
    halves = np.frombuffer(reader.take(2 * shape.blocks, "scales"), dtype="<u2")
    packed = reader.take(_code_bytes(shape), "codes")
    scales = torch.from_numpy(halves.astype(np.int32) << 16).view(torch.float32)
    all_bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), bitorder="little")
    length = shape.blocks * shape.kept
    if all_bits[length * bits :].any():
        raise WireError("the last byte of codes must be filled up with zeros")
    parts = all_bits[: length * bits].reshape(length, bits) << np.arange(bits, dtype=np.uint8)
    codes = torch.from_numpy(parts.sum(axis=1, dtype=np.uint8))
    found = EdenMessage(shape, key, client, scales, codes.view(shape.blocks, shape.kept))
    found._check()
    return found, Coding(format)


for _format in range(0x50, 0x60):  # reading says which of them there are
    register_section(_format, _read)
