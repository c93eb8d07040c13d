"""EDEN's random rotation, the few values of a normal number, and the way back (eden.py).

A rotation is signs and a Hadamard matrix, twice. Once, as in the papers' programs, leaves a mark of
single large numbers, and estimates of heavy-tailed vectors are then off in the mean.

The random numbers follow from the key of the round and the client, as in levels.py: the upper two
bits of a number's word are its signs, the others decide which numbers of a block are sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from fetchsgd.quantisers.kernels.reference import random_words

BLOCK = 4096


@dataclass(frozen=True)
class Shape:
    """`count` numbers in blocks, of each of which `kept` numbers are sent in `bits` bits."""

    count: int
    bits: int
    kept: int

    @classmethod
    def of(cls, count: int, rate: float) -> Shape:
        block = _block(count)
        return cls(count, max(int(rate), 1), max(round(min(rate, 1.0) * block), 1))

    @property
    def block(self) -> int:
        return _block(self.count)

    @property
    def blocks(self) -> int:
        return -(-self.count // self.block)

    def in_blocks(self, rows: Float32[Tensor, "n count"]) -> Float32[Tensor, "n blocks block"]:
        """The last block filled up with zeros."""
        missing = self.blocks * self.block - self.count
        padded = torch.nn.functional.pad(rows, (0, missing))
        return padded.view(len(rows), self.blocks, self.block)


def _block(count: int) -> int:
    """The smallest power of two that holds all numbers, but at most BLOCK."""
    return min(1 << max(count - 1, 0).bit_length(), BLOCK)


def decode(
    shape: Shape,
    key: int,
    clients: Int64[Tensor, " n"],
    scales: Float32[Tensor, "n blocks"],
    codes: UInt8[Tensor, "n blocks kept"],
) -> Float32[Tensor, "n count"]:
    """The numbers that messages stand for."""
    first, second, kept = random_parts(shape, key, clients)
    table = torch.tensor(centroids(shape.bits), dtype=torch.float32, device=scales.device)
    values = table[codes.long()] * scales[..., None]
    if kept is not None:
        values = torch.zeros_like(first).scatter_(2, kept, values)
    return (hadamard(hadamard(values) * second) * first).flatten(1)[:, : shape.count]


def random_parts(
    shape: Shape, key: int, clients: Int64[Tensor, " n"]
) -> tuple[
    Float32[Tensor, "n blocks block"],
    Float32[Tensor, "n blocks block"],
    Int64[Tensor, "n blocks kept"] | None,
]:
    """Both signs of each number, and which of a block are sent; None if all are."""
    runs = -(-shape.blocks * shape.block // 256)
    words = random_words(clients, runs, key).flatten(1)[:, : shape.blocks * shape.block]
    words = words.view(len(clients), shape.blocks, shape.block)
    first, second = (1.0 - 2.0 * (words >> bit & 1).float() for bit in (31, 30))
    if shape.kept == shape.block:
        return first, second, None
    order = torch.argsort(words & 0x3FFFFFFF, dim=-1, stable=True)
    return first, second, order[..., : shape.kept].sort(dim=-1).values


def hadamard(blocks: Float32[Tensor, "n blocks block"]) -> Float32[Tensor, "n blocks block"]:
    """Each block times the Hadamard matrix of length 1: its own inverse, and sums alone."""
    size = blocks.shape[-1]
    half = 1
    while half < size:
        pairs = blocks.view(*blocks.shape[:-1], size // (2 * half), 2, half)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        blocks = torch.stack([a + b, a - b], dim=-2).view(blocks.shape)
        half *= 2
    return blocks * (1 / math.sqrt(size))


@lru_cache
def centroids(bits: int) -> tuple[float, ...]:
    """The 2^bits values for a standard normal number with the least squared error.

    Lloyd and Max: each is the mean of the numbers nearest to it.
    """
    top = 2 ** (bits - 1)
    values = [(i + 0.5) * 3 / top for i in range(top)]
    for _ in range(2000):
        edges = [0.0, *((a + b) / 2 for a, b in pairwise(values)), math.inf]
        values = [_mean_between(a, b) for a, b in pairwise(edges)]
    return (*(-v for v in reversed(values)), *values)


def _mean_between(low: float, high: float) -> float:
    density = [math.exp(-x * x / 2) / math.sqrt(2 * math.pi) for x in (low, high)]
    above = [math.erfc(x / math.sqrt(2)) / 2 for x in (low, high)]
    return (density[0] - density[1]) / (above[0] - above[1])
