"""A writer of sparse integers in chunks (docs/wire.md), with one table for all chunks and values.

Fetchsgd chooses its tables better, so its messages are shorter; what they mean is the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import comb

import numpy as np

from plain_client.rounding import Steps
from plain_client.writing import normalised, number, table_bytes

SEGMENT, CHUNK = 2**18, 64
Slot = tuple[int, int]  # start and frequency of a symbol


def steps_section(steps: Steps) -> tuple[int, bytes]:
    """Format and bytes of whole multiples of a step."""
    return 0x40, struct.pack("<f", steps.step) + chunks_section(steps.levels)


def chunks_section(integers: np.ndarray) -> bytes:
    segments = [integers[i : i + SEGMENT] for i in range(0, len(integers), SEGMENT)]
    filled = [segment for segment in segments if segment.any()]
    if not filled:
        return bytes(len(segments))
    counts = np.concatenate([_counts(segment) for segment in filled])
    values = np.concatenate([segment[segment != 0] for segment in filled])
    of_counts = normalised(np.bincount(counts, minlength=65), 2**14)
    symbols = [_symbol(int(value))[0] for value in values]
    of_values = normalised(np.bincount(symbols), 2**14)
    coded = [_coded(segment, of_counts, of_values) for segment in filled]
    sizes = iter(coded)
    directory = b"".join(
        number(n) + (number(len(next(sizes))) if n else b"")
        for n in (int(np.count_nonzero(segment)) for segment in segments)
    )
    tables = bytes([14, 0, 1]) + table_bytes(of_counts) + table_bytes(of_values)
    found = directory + tables + b"".join(coded)
    return found + bytes(max(-(-len(values) // 32) - len(found), 0))


def _counts(segment: np.ndarray) -> np.ndarray:
    """Nonzeros of each chunk."""
    return np.count_nonzero(np.pad(segment, (0, -len(segment) % CHUNK)).reshape(-1, CHUNK), axis=1)


def _symbol(value: int) -> tuple[int, int, int]:
    """Symbol, extra bits, and how many of these."""
    z = 2 * value if value >= 0 else -2 * value - 1
    if z < 64:
        return z, 0, 0
    e = z.bit_length() - 1
    return 64 + 2 * (e - 6) + (z >> e - 1 & 1), z & (1 << e - 1) - 1, e - 1


def _coded(segment: np.ndarray, of_counts: list[int], of_values: list[int]) -> bytes:
    steps = list(_steps(segment, _slots(of_counts), _slots(of_values)))
    x, words = 2**16, []
    for start, f in reversed(steps):
        if x >= f << 18:
            words.append(x & 0xFFFF)
            x >>= 16
        x = (x // f << 14) + x % f + start
    return struct.pack(f"<I{len(words)}H", x, *reversed(words))


def _slots(frequencies: list[int]) -> list[Slot]:
    starts = np.cumsum([0, *frequencies]).tolist()
    return list(zip(starts, frequencies, strict=False))


def _steps(segment: np.ndarray, counts: list[Slot], values: list[Slot]) -> Iterator[Slot]:
    """What a reader decodes, in that order."""
    for first in range(0, len(segment), CHUNK):
        chunk = segment[first : first + CHUNK]
        places = np.flatnonzero(chunk).tolist()
        n = len(places)
        yield counts[n]
        if 0 < n < CHUNK:
            rank = sum(comb(place, i) for i, place in enumerate(places, 1))
            yield from _below(rank, comb(CHUNK, n))
        for place in places:
            symbol, extra, bits = _symbol(int(chunk[place]))
            yield values[symbol]
            yield from _bits(extra, bits)


def _one_of(s: int, m: int) -> Slot:
    start = 2**14 * s // m
    return start, 2**14 * (s + 1) // m - start


def _bits(value: int, n: int) -> Iterator[Slot]:
    while n > 0:
        yield _one_of(value & (1 << min(n, 14)) - 1, 1 << min(n, 14))
        value, n = value >> 14, n - 14


def _below(rank: int, size: int) -> Iterator[Slot]:
    if size <= 4096:
        yield _one_of(rank, size)
        return
    low = (size - 1).bit_length() - 10
    yield _one_of(rank >> low, (size - 1 >> low) + 1)
    yield from _bits(rank & (1 << low) - 1, low)
