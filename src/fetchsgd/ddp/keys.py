"""What is random in a step: the seed of a bucket's hash, and the key of its random rounding.

Both are words of Philox4x64-10 under the seed of the settings, at a counter that says which step
and which bucket (docs/hash.md, as for the rounds of a federation). Drawing one pair takes Python as
long as a GPU takes for a whole bucket, so there a few hundred steps are drawn at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# A bucket's hash follows from step * BUCKETS + its index.
BUCKETS = 1 << 20
WORD = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
# Philox4x64-10: its two multipliers, and by how much keys grow in a round.
MULTIPLIERS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
GROWTH = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
ROUNDS = 10
# Counters of round seeds and of a hash's keys, as sketch/hashing.py and sketch/permutation.py have.
OF_ROUNDS, OF_KEYS = 2, 1

Words = np.ndarray[Any, np.dtype[np.uint64]]


class Draw(NamedTuple):
    """For one step of one bucket."""

    hash_seed: int
    rounding: int  # of 63 bits


def draw(seed: int, step: int, bucket: int) -> Draw:
    """For one step."""
    counter = np.array([step * BUCKETS + bucket, 0, 0, OF_ROUNDS], dtype=np.uint64)
    stream = np.random.Philox(counter=counter, key=np.array([seed, 0], dtype=np.uint64))
    first, second = (int(word) for word in stream.random_raw(2))
    return Draw(first, second >> 1)


def drawn_ahead(seed: int, first: int, count: int, bucket: int) -> np.ndarray[Any, Any]:
    """For steps from `first` on, as six int32 each: four keys of the hash, and of rounding two."""
    with np.errstate(over="ignore"):
        # A stream's first words belong to the counter after the one that it is given.
        places = (np.arange(first, first + count) * BUCKETS + bucket + 1).astype(np.uint64)
        seeds, rounding, *_ = philox(places, OF_ROUNDS, np.full(count, seed, dtype=np.uint64))
        low, high, *_ = philox(np.ones(count, dtype=np.uint64), OF_KEYS, seeds)
        rounding >>= np.uint64(1)
        halves = [half for word in (low, high, rounding) for half in (word & WORD, word >> HALF)]
    return np.stack(halves, axis=1).astype(np.uint32).view(np.int32)


def philox(places: Words, kind: int, keys: Words) -> list[Words]:
    """The four words of counters [place, 0, 0, kind] under keys [key, 0]."""
    a, b = places.copy(), np.zeros_like(places)
    c, d = np.zeros_like(places), np.full_like(places, kind)
    key, other = keys.copy(), np.zeros_like(keys)
    for _ in range(ROUNDS):
        (high_a, low_a), (high_c, low_c) = product(a, MULTIPLIERS[0]), product(c, MULTIPLIERS[1])
        a, b, c, d = high_c ^ b ^ key, low_c, high_a ^ d ^ other, low_a
        key, other = key + GROWTH[0], other + GROWTH[1]
    return [a, b, c, d]


def product(x: Words, y: np.uint64) -> tuple[Words, Words]:
    """The upper and the lower 64 bits of x times y."""
    x_low, x_high = x & WORD, x >> HALF
    y_low, y_high = y & WORD, y >> HALF
    crossed = x_high * y_low + ((x_low * y_low) >> HALF)
    other = x_low * y_high + (crossed & WORD)
    return x_high * y_high + (crossed >> HALF) + (other >> HALF), x * y
