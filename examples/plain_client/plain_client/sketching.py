"""Sketches of a vector, written from docs/hash.md: its two hashes, and the order of sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

GOLDEN, FIRST, SECOND = (np.uint64(c) for c in (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35))
WORD = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True)
class Sketch:
    """`permuted`: the hash without tables."""

    dim: int
    rows: int
    cols: int
    block: int
    seed: int
    permuted: bool

    def of(self, vector: np.ndarray) -> np.ndarray:
        """The table, row after row: sums in float32, in order of index."""
        table = np.zeros((self.rows, self.cols), np.float32)
        index = np.arange(self.dim)
        for row in range(self.rows):
            cells, signs = (
                self.permutation(index, row) if self.permuted else self.blocks(index, row)
            )
            signed = np.where(signs, -vector, vector)
            halves = np.zeros((2, self.cols), np.float32)
            half = self._half if self.permuted else self.dim
            for part, span in zip(halves, (slice(half), slice(half, None)), strict=True):
                np.add.at(part, cells[span], signed[span])
            table[row] = halves[0] + halves[1]
        return table

    def blocks(self, index: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Cell of each coordinate, and whether its sign is -1."""
        count = -(-self.dim // self.block)
        words = np.random.Philox(key=np.array([self.seed, row], np.uint64)).random_raw(count)
        starts = np.array([int(word >> np.uint64(1)) * self.cols >> 63 for word in words])
        block = index // self.block
        return (starts[block] + index % self.block) % self.cols, words[block] & np.uint64(1) == 1

    def permutation(self, index: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray]:
        """The same, without a table of places."""
        k0, k1, k2, k3 = keys(self.seed)
        enough, q, m = self.dim <= self.cols, self._width, self._groups
        group, y = (part.astype(np.uint64) for part in np.divmod(index, q * self.block))
        t, place = y // np.uint64(self.block), y % np.uint64(self.block)
        f = mix(group + np.uint64(row * m) + k0)
        g = mix(f + k1)
        bit = mix(y // np.uint64(32) * GOLDEN + (g ^ k3)) >> y % np.uint64(32) & np.uint64(1)
        if enough:
            return index, bit == 1
        s = np.uint64((q.bit_length() - 1) // 2)
        width, low_size = np.uint64(q), np.uint64(1) << s
        a = width >> s
        t = (t + part(f, width)) % width
        high, low = t >> s, t % low_size
        low = low ^ part(half_mix(high, f ^ k2), low_size)
        high = (high + part(half_mix(low, g ^ k2), a)) % a
        low = low ^ part(half_mix(high, f ^ k3), low_size)
        t = np.where(t < a * low_size, high * low_size + low, t)
        column = (t + part(g, width)) % width
        cells = column * np.uint64(self.block) + (place ^ f % np.uint64(self.block))
        return cells.astype(np.int64), bit == 1

    @property
    def _width(self) -> int:
        """q: blocks in a group."""
        return -(-self.dim // self.block) if self.dim <= self.cols else self.cols // self.block

    @property
    def _groups(self) -> int:
        return -(-self.dim // (self._width * self.block))

    @property
    def _half(self) -> int:
        """The first coordinate of the second half of the groups."""
        return self._groups // 2 * self._width * self.block


def keys(seed: int) -> list[np.uint64]:
    """k0 to k3."""
    # numpy counts up before it draws, so this is the counter (1, 0, 0, 1).
    words = _philox(seed, [0, 0, 0, 1], 2)
    return [part for word in words for part in (word & WORD, word >> np.uint64(32))]


def seed_of_round(seed: int, round: int) -> int:
    return int(_philox(seed, [round, 0, 0, 2], 1)[0])


def _philox(seed: int, counter: list[int], count: int) -> np.ndarray:
    key = np.array([seed, 0], np.uint64)
    return np.random.Philox(counter=np.array(counter, np.uint64), key=key).random_raw(count)


def part(word: np.ndarray, size: np.uint64) -> np.ndarray:
    return word * size >> np.uint64(32)


def mix(x: np.ndarray) -> np.ndarray:
    x = x & WORD
    x = (x ^ x >> np.uint64(16)) * FIRST & WORD
    x = (x ^ x >> np.uint64(13)) * SECOND & WORD
    return x ^ x >> np.uint64(16)


def half_mix(x: np.ndarray, key: np.ndarray) -> np.ndarray:
    z = x * GOLDEN + key & WORD
    return (z ^ z >> np.uint64(16)) * FIRST & WORD


def block_of(cols: int, fresh: bool) -> int:
    """Where `method.block` is 0."""
    most = 16 if fresh else 4
    block = 1
    while block < most and 2 * block * 4096 <= cols:
        block *= 2
    return block
