"""A sign and one of two magnitudes: two bits for a number, rounded to the nearest.

For each run of 1,024 numbers a message says two magnitudes: the means of those below and of those
above the mean. That is right for numbers of which none is small, the largest of many, as
SparseLoCo sends them. It is not right in the mean, so it is for clients who keep what it rounds
off (methods/messages/chunked.py).

    for each run   the two magnitudes, bfloat16, the smaller first
    then           codes of two bits, the lowest bit first: the sign, then whether it is the larger
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64, UInt8
from torch import Tensor

from fetchsgd.wire import Coding, Reader, WireError, register_section

FORMAT = 0x70
RUN = 1024
INFINITY = 0x7F80


def section_bytes(count: int) -> int:
    return 4 * _runs(count) + (2 * count + 7) // 8


def _runs(count: int) -> int:
    return -(-count // RUN)


@dataclass(frozen=True)
class TwoBits:
    """A sign and one of two magnitudes for each number.

    >>> rows = torch.tensor([[1.0, -1.0, 3.0, -3.0]])  # one client's numbers
    >>> TwoBits().round_rows(rows, key=7, clients=torch.tensor([0])).dequantise()
    tensor([[ 1., -1.,  3., -3.]])
    """

    exact = False
    biased = True  # rounded to the nearest

    def round_rows(
        self,
        rows: Float32[Tensor, "n count"],
        key: int,  # noqa: ARG002
        clients: Int64[Tensor, " n"],  # noqa: ARG002
    ) -> TwoBitRows:
        n, count = rows.shape
        runs = _runs(count)
        missing = runs * RUN - count
        sizes = torch.nn.functional.pad(rows.abs(), (0, missing)).view(n, runs, RUN)
        is_there = torch.ones(count, dtype=torch.bool, device=rows.device)
        is_there = torch.nn.functional.pad(is_there, (0, missing)).view(runs, RUN)
        is_large = sizes > _mean(sizes, is_there)
        small, large = _mean(sizes, is_there & ~is_large), _mean(sizes, is_there & is_large)
        magnitudes = torch.cat([small, torch.maximum(small, large)], dim=2)
        magnitudes = magnitudes.to(torch.bfloat16).float()
        codes = is_large.view(n, runs * RUN)[:, :count].to(torch.uint8) * 2 + (rows < 0)
        return TwoBitRows(magnitudes, codes)

    def fixed_bytes(self, count: int) -> int:
        return section_bytes(count)

    def reads(self, format: int) -> bool:
        return format == FORMAT

    def most_bytes(self, count: int) -> int:
        return section_bytes(count)


def _mean(sizes: Float32[Tensor, "n runs run"], counted: Tensor) -> Float32[Tensor, "n runs 1"]:
    """Of those that are counted; 0 where none is, and NaN stays."""
    total = torch.where(counted, sizes, 0).sum(dim=2, keepdim=True)
    return total / counted.expand_as(sizes).sum(dim=2, keepdim=True).clamp(min=1)


def _read_codes(magnitudes: Tensor, codes: Tensor) -> Float32[Tensor, "n count"]:
    """The numbers that codes stand for, row by row."""
    runs = torch.arange(codes.shape[1], device=codes.device) // RUN
    place = 2 * runs + (codes >> 1).long()
    return magnitudes.flatten(1).gather(1, place) * (1.0 - 2.0 * (codes & 1).float())


@dataclass(frozen=True, eq=False)
class TwoBitRows:
    """A cohort's messages, side by side."""

    magnitudes: Float32[Tensor, "n runs 2"]
    codes: UInt8[Tensor, "n count"]

    def weighted_sum(self, weights: Float32[Tensor, " n"]) -> Float32[Tensor, " count"]:
        return weights @ self.dequantise()

    def dequantise(self) -> Float32[Tensor, "n count"]:
        return _read_codes(self.magnitudes, self.codes)

    def section_bytes(self) -> Float64[Tensor, " n"]:
        n, count = self.codes.shape
        return torch.full((n,), float(section_bytes(count)), dtype=torch.float64)

    def row(self, index: int) -> TwoBitMessage:
        return TwoBitMessage(self.magnitudes[index], self.codes[index])


@dataclass(frozen=True, eq=False)
class TwoBitMessage:
    """One client's numbers."""

    magnitudes: Float32[Tensor, "runs 2"]  # each exactly a bfloat16, not negative
    codes: UInt8[Tensor, " count"]

    @property
    def count(self) -> int:
        return len(self.codes)

    def floats(self) -> Float32[Tensor, " count"]:
        return _read_codes(self.magnitudes[None], self.codes[None])[0]

    def section_bytes(self) -> float:
        return float(section_bytes(self.count))

    def coding(self) -> Coding:
        if tuple(self.magnitudes.shape) != (_runs(self.count), 2):
            raise ValueError("there must be two magnitudes for each run")
        bits = self.magnitudes.contiguous().view(torch.int32)
        if bool(((bits < 0) | (bits >= INFINITY << 16) | (bits & 0xFFFF != 0)).any()):
            raise ValueError("magnitudes must be finite bfloat16 numbers that are not negative")
        if bool((self.codes > 3).any()):
            raise ValueError("codes must be from 0 to 3")
        return Coding(FORMAT)

    def write(self, coding: Coding) -> bytes:  # noqa: ARG002
        halves = (self.magnitudes.cpu().contiguous().view(torch.int32).numpy() >> 16).astype("<u2")
        bits = self.codes.cpu().numpy()[:, None] >> np.arange(2, dtype=np.uint8) & 1
        return halves.tobytes() + np.packbits(bits.ravel(), bitorder="little").tobytes()


def _read(reader: Reader, format: int, count: int) -> tuple[TwoBitMessage, Coding]:
    if format != FORMAT:
        raise WireError(f"there is no values format {format:#x}")
    halves = np.frombuffer(reader.take(4 * _runs(count), "magnitudes"), dtype="<u2")
    if (halves >= INFINITY).any():
        raise WireError("magnitudes must be finite and not negative")
    packed = np.frombuffer(reader.take((2 * count + 7) // 8, "codes"), dtype=np.uint8)
    bits = np.unpackbits(packed, bitorder="little")
    if bits[2 * count :].any():
        raise WireError("the last byte of codes must be filled up with zeros")
    pairs = bits[: 2 * count].reshape(count, 2)
    magnitudes = torch.from_numpy(halves.astype(np.int32) << 16).view(torch.float32).view(-1, 2)
    return TwoBitMessage(magnitudes, torch.from_numpy(pairs[:, 0] + 2 * pairs[:, 1])), Coding(
        format
    )


for _format in range(FORMAT, FORMAT + 16):  # reading says which of them there are
    register_section(_format, _read)
