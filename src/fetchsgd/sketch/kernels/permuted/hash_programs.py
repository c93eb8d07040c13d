"""permutation.py in Triton: columns of blocks, blocks of columns and signs, in uint32.

Keys and sizes are arguments for whose values nothing is compiled (RUN_TIME): a new key takes no
longer than an old one.
"""

# mypy: ignore-errors
# Compiled by Triton, which has no types and needs none.

from __future__ import annotations

import triton
import triton.language as tl

# Arguments for whose values nothing is compiled.
RUN_TIME = [
    "width", "low_bits", "highs", "turns", "flips", "sign_mask", "first_group", "groups",
    "k0", "k1", "k2", "k3",
]  # fmt: skip


@triton.jit
def mix(x):
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def half_mix(x, key):
    z = x * 0x9E3779B1 + key
    return (z ^ (z >> 16)) * 0x85EBCA6B


@triton.jit
def turn(x, by, size):
    """X + by modulo size, both below it: the sum less size wraps to a huge number if too small."""
    moved = x + by
    return tl.minimum(moved, moved - size)


@triton.jit
def high_bits(x, count, size):
    """The highest `count` bits, 2^count being `size`: none at all if that is 1."""
    # No word is shifted by all of its bits, and the mask costs nothing before an exclusive or.
    return (x >> tl.minimum(32 - count, 31)) & (size - 1)


@triton.jit
def words(group, k0, k1):
    """The two words of a group, from which all else follows."""
    first = mix(group.to(tl.uint32) + k0.to(tl.uint32, bitcast=True))
    return first, mix(first + k1.to(tl.uint32, bitcast=True))


@triton.jit
def column_of(t, first, second, width, low_bits, highs, turns, k2, k3):
    """The column of blocks where block t of a group goes."""
    size, low_bits = width.to(tl.uint32), low_bits.to(tl.uint32)
    highs, turns = highs.to(tl.uint32), turns.to(tl.uint32)
    k2, k3 = k2.to(tl.uint32, bitcast=True), k3.to(tl.uint32, bitcast=True)
    lows = (low_bits * 0 + 1) << low_bits
    t = turn(t, tl.umulhi(first, turns), size)
    high = t >> low_bits
    low = t & (lows - 1)
    low = low ^ high_bits(half_mix(high, first ^ k2), low_bits, lows)
    high = turn(high, tl.umulhi(half_mix(low, second ^ k2), highs), highs)
    low = low ^ high_bits(half_mix(high, first ^ k3), low_bits, lows)
    t = tl.where(t < highs * lows, (high << low_bits) | low, t)
    return turn(t, tl.umulhi(second, turns), size)


@triton.jit
def block_at(column, first, second, width, low_bits, highs, turns, k2, k3):
    """The block of a group that goes to a column: the same steps backwards."""
    size, low_bits = width.to(tl.uint32), low_bits.to(tl.uint32)
    highs, turns = highs.to(tl.uint32), turns.to(tl.uint32)
    k2, k3 = k2.to(tl.uint32, bitcast=True), k3.to(tl.uint32, bitcast=True)
    lows = (low_bits * 0 + 1) << low_bits
    t = turn(column, size - tl.umulhi(second, turns), size)
    high = t >> low_bits
    low = t & (lows - 1)
    low = low ^ high_bits(half_mix(high, first ^ k3), low_bits, lows)
    high = turn(high, highs - tl.umulhi(half_mix(low, second ^ k2), highs), highs)
    low = low ^ high_bits(half_mix(high, first ^ k2), low_bits, lows)
    t = tl.where(t < highs * lows, (high << low_bits) | low, t)
    return turn(t, size - tl.umulhi(first, turns), size)


@triton.jit
def negated(values, bits):
    return (values.to(tl.uint32, bitcast=True) ^ bits).to(tl.float32, bitcast=True)
