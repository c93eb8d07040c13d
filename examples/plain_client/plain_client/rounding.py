"""Numbers in few bits, rounded at random (docs/protocol.md, "Rounding").

Every operation on floats is one of float32, in the order written; everything else is whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plain_client.seeds import random_words

RUN = 256
INFINITY, LARGEST, SMALLEST = 0x7F800000, 0x7F7F0000, 0x0D800000  # bits of float32


@dataclass(frozen=True)
class Levels:
    """Cells of `bits` bits: a scale for each run of 256, and a level for each cell."""

    bits: int
    count: int
    scales: np.ndarray  # float32, exactly bfloat16
    levels: np.ndarray  # (runs, 256), the last run filled up with 0

    def floats(self) -> np.ndarray:
        """What a server makes of them."""
        units = self.scales / np.float32(top_level(self.bits))
        return (self.levels.astype(np.float32) * units[:, None]).ravel()[: self.count]


@dataclass(frozen=True)
class Steps:
    """Whole multiples of one step."""

    step: np.float32
    levels: np.ndarray

    def floats(self) -> np.ndarray:
        return self.levels.astype(np.float32) * self.step


def top_level(bits: int) -> int:
    return 2 ** (bits - 1) - 1


def to_levels(cells: np.ndarray, bits: int, key: int, client: int) -> Levels:
    runs, top = _in_runs(cells), top_level(bits)
    sizes = np.abs(runs).max(axis=1).view(np.uint32).astype(np.int64)
    scale_bits = np.minimum(sizes + 0xFFFF & 0xFFFF0000, LARGEST)
    scale_bits[scale_bits < SMALLEST] = 0
    scales = scale_bits.astype(np.uint32).view(np.float32)
    usable = scales > 0
    factors = np.float32(top) / np.where(usable, scales, np.float32(1))
    places = np.where(usable[:, None], runs, np.float32(0)) * factors[:, None] * np.float32(2**24)
    whole = np.clip(places, -top * 2.0**24, top * 2.0**24).astype(np.int64)
    random = (random_words(key, client, len(runs)) >> np.uint64(8)).astype(np.int64)
    return Levels(bits, len(cells), scales, whole + random >> 24)


def to_bfloat16(cells: np.ndarray, key: int, client: int) -> np.ndarray:
    """Add 16 random bits to the bits of each number, and cut."""
    runs = _in_runs(cells)
    bits = runs.view(np.uint32).astype(np.int64)
    random = (random_words(key, client, len(runs)) & np.uint64(0xFFFF)).astype(np.int64)
    moved = np.minimum((bits & 0x7FFFFFFF) + random & 0xFFFF0000, LARGEST) | bits & 0x80000000
    return moved.astype(np.uint32).view(np.float32).ravel()[: len(cells)]


def rms_step(numbers: np.ndarray, tau: float) -> np.float32:
    """`tau` times the root mean square, to 8 significant bits."""
    if len(numbers) == 0:
        return np.float32(0)
    padded = np.pad(numbers, (0, -len(numbers) % 4096)).reshape(-1, 4096)
    bits = np.abs(padded).view(np.uint32).astype(np.int64)
    exponent = bits >> 23
    whole = bits & 0x7FFFFF | np.where(exponent > 0, 0x800000, 0)
    tops = np.maximum(exponent.max(axis=1), 1)
    whole = whole >> np.minimum(tops[:, None] - np.maximum(exponent, 1), 31)
    sums = (whole * whole).sum(axis=1) >> 20
    total = (sums >> np.minimum(2 * (tops.max() - tops), 63)).sum()
    exact = tau * np.sqrt(np.float64(total) / len(numbers)) * 2.0 ** int(tops.max() - 140)
    return _to_8_bits(exact)


def shared_step(numbers: np.ndarray, density: float, size: float) -> np.float32:
    """The step of `upload.density`, where numbers have lately had this mean magnitude."""
    own = rms_step(numbers, 0.8 / density)
    return max(_to_8_bits(size / density), own / np.float32(8)) if size > 0 else own


def _to_8_bits(exact: float) -> np.float32:
    most = np.uint32(LARGEST).view(np.float32)
    bits = int(np.float32(min(exact, float(most))).view(np.uint32)) + 0x8000 & 0xFFFF0000
    return np.uint32(0 if bits < SMALLEST else min(bits, LARGEST)).view(np.float32)


def to_steps(numbers: np.ndarray, step: np.float32, key: int, client: int) -> Steps:
    if step == 0:
        return Steps(step, np.zeros(len(numbers), np.int64))
    runs = _in_runs(numbers)
    places = runs * (np.float32(1) / step) * np.float32(2**24)
    random = (random_words(key, client, len(runs)) >> np.uint64(8)).astype(np.int64)
    return Steps(step, (places.astype(np.int64) + random >> 24).ravel()[: len(numbers)])


def _in_runs(numbers: np.ndarray) -> np.ndarray:
    return np.pad(numbers, (0, -len(numbers) % RUN)).reshape(-1, RUN)
