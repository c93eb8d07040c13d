"""Where each coordinate goes without a table: a keyed permutation for each group of blocks.

A vector is cut into groups of as many blocks as a row has columns of `block` cells. Within a group
every block has a column of its own, given by a permutation whose key follows from the seed, the row
and the group. So every cell gets one coordinate of each group: cells are balanced, two of one group
never meet, and both directions are a few integer instructions. Signs are drawn for each coordinate.
`docs/hash.md` specifies the numbers below exactly, with test vectors and what is proved of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

# Everything is arithmetic modulo 2^32.
MASK = (1 << 32) - 1
# Odd multipliers: the golden ratio's, and the two of MurmurHash3's finaliser.
GOLDEN, FIRST, SECOND = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35
# One word gives the signs of this many coordinates.
SIGNS = 32
# Groups of all rows together have numbers of 32 bits, with room for a sign.
MAX_GROUPS = 1 << 30


def draw_keys(seed: int) -> tuple[int, int, int, int]:
    """Four words of 32 bits from two of Philox4x64-10, at a counter that `blocks` never reaches."""
    stream = np.random.Philox(
        counter=np.array([0, 0, 0, 1], dtype=np.uint64),
        key=np.array([seed, 0], dtype=np.uint64),
    )
    low, high = (int(word) for word in stream.random_raw(2))
    return low & MASK, low >> 32, high & MASK, high >> 32


@dataclass(frozen=True)
class Permutation:
    """The hash of one sketch: its five numbers, and those that follow from them.

    `first_row` and `signed` make variants: row `first_row` alone, and all signs +1.
    """

    dim: int
    rows: int
    cols: int
    block: int
    seed: int
    first_row: int = 0
    signed: bool = True

    @property
    def num_blocks(self) -> int:
        return -(-self.dim // self.block)

    @cached_property
    def mixes(self) -> bool:
        """Where there is a cell for each coordinate, coordinate i stays in cell i."""
        return self.dim > self.cols

    @cached_property
    def width(self) -> int:
        """q: blocks in a group, and columns of blocks in a row."""
        return self.cols // self.block if self.mixes else self.num_blocks

    @cached_property
    def groups(self) -> int:
        """m: each cell holds at most one coordinate of each."""
        return -(-self.num_blocks // self.width)

    @cached_property
    def half(self) -> int:
        """The coordinate where the second half of the groups begins.

        A cell is the sum of the first half of its coordinates, in order, plus that of the second.
        """
        return self.groups // 2 * self.width * self.block

    @cached_property
    def low_bits(self) -> int:
        """s: columns are numbers (high, low), where low has s bits."""
        return (self.width.bit_length() - 1) // 2

    @cached_property
    def highs(self) -> int:
        """a: how many values high takes where all values of low are there."""
        return self.width >> self.low_bits if self.mixes else 0

    @cached_property
    def turns(self) -> int:
        """How many rotations there are."""
        return self.width if self.mixes else 0

    @cached_property
    def flips(self) -> int:
        """The largest number with which places in a block are combined."""
        return self.block - 1 if self.mixes else 0

    @cached_property
    def sign_mask(self) -> int:
        return MASK if self.signed else 0

    @cached_property
    def keys(self) -> tuple[int, int, int, int]:
        return draw_keys(self.seed)

    @cached_property
    def first_group(self) -> int:
        """The number of the first row's first group: rows go on counting."""
        return self.first_row * self.groups

    def without_signs(self, row: int | None = None) -> Permutation:
        """The same with all signs +1: of all rows, or of one alone."""
        if row is None:
            found = replace(self, signed=False)
        else:
            found = replace(self, signed=False, rows=1, first_row=row)
        found.__dict__["keys"] = self.keys  # the same seed: drawn once
        return found


def mix(x: Int64[Tensor, ...]) -> Int64[Tensor, ...]:
    """MurmurHash3's finaliser: every bit of x reaches every bit of the result."""
    x = x & MASK
    x = ((x ^ x >> 16) * FIRST) & MASK
    x = ((x ^ x >> 13) * SECOND) & MASK
    return x ^ x >> 16


def half_mix(x: Int64[Tensor, ...], key: Int64[Tensor, ...]) -> Int64[Tensor, ...]:
    """A number whose high bits depend on all of x and of the key."""
    z = (x * GOLDEN + key) & MASK
    return ((z ^ z >> 16) * FIRST) & MASK


def locate(
    hash: Permutation, indices: Int64[Tensor, " n"], row: int
) -> tuple[Int64[Tensor, " n"], Float32[Tensor, " n"]]:
    """Cell and sign of some coordinates in one row: the definition, step by step."""
    h, (k0, k1, k2, k3) = hash, hash.keys
    group, within = indices // (h.width * h.block), indices % (h.width * h.block)
    t, place = within // h.block, within % h.block
    first = mix(group + (h.first_row + row) * h.groups + k0)
    second = mix(first + k1)
    t = (t + (first * h.turns >> 32)) % h.width
    high, low = t >> h.low_bits, t & ((1 << h.low_bits) - 1)
    low = low ^ half_mix(high, first ^ k2) >> (32 - h.low_bits)
    high = (high + (half_mix(low, second ^ k2) * h.highs >> 32)) % max(h.highs, 1)
    low = low ^ half_mix(high, first ^ k3) >> (32 - h.low_bits)
    t = torch.where(t < h.highs << h.low_bits, high << h.low_bits | low, t)
    column = (t + (second * h.turns >> 32)) % h.width
    word = mix(within // SIGNS * GOLDEN + (second ^ k3)) & h.sign_mask
    signs = (1 - 2 * (word >> within % SIGNS & 1)).to(torch.float32)
    return column * h.block + (place ^ first & h.flips), signs
