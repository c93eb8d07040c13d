"""Long streams are cut into segments, so that several threads code and decode them.

A stream is a directory of sizes, then the segments one after another, then zeros if it would be
shorter than one byte for every 32 symbols. The last rule bounds what a hostile message can make its
reader allocate: the reader checks it before anything else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fetchsgd.wire.errors import WireError
from fetchsgd.wire.reader import Reader

SEGMENT = 1 << 16
EXPANSION = 32


def spans(count: int) -> list[tuple[int, int]]:
    """First and one past the last of each segment."""
    return [(first, min(first + SEGMENT, count)) for first in range(0, count, SEGMENT)]


def shortest(symbols: int) -> int:
    """The fewest bytes that a stream of that many symbols may have."""
    return -(-symbols // EXPANSION)


def assemble(directory: bytes, segments: list[bytes], symbols: int) -> bytes:
    size = len(directory) + sum(map(len, segments))
    return b"".join([directory, *segments, bytes(max(shortest(symbols) - size, 0))])


def refuse_expansion(reader: Reader, start: int, symbols: int) -> None:
    """Nothing of the size of `symbols` may be allocated before this."""
    present = len(reader.data) - start
    if present < shortest(symbols):
        raise WireError(f"{symbols} symbols cannot follow from {present} bytes")


def skip_padding(reader: Reader, start: int, symbols: int) -> None:
    missing = start + shortest(symbols) - reader.at
    if missing > 0:
        reader.zeros(missing, "padding after entropy-coded data")


def bit_words(bits: int) -> NDArray[np.uint64]:
    """Room for a bit stream."""
    return np.zeros((bits + 63) // 64 + 2, dtype=np.uint64)


def bit_bytes(words: NDArray[np.uint64], bits: int) -> bytes:
    return words.astype("<u8").tobytes()[: (bits + 7) // 8]


def read_bit_words(data: memoryview) -> NDArray[np.uint64]:
    words = np.zeros((len(data) + 7) // 8 + 2, dtype="<u8")
    words.view(np.uint8)[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    return words.astype(np.uint64, copy=False)


def check_last_byte(data: memoryview, bits: int) -> None:
    """The stream has just the bytes it needs, and what is left of the last one is zero."""
    if len(data) != (bits + 7) // 8 or (bits % 8 and data[-1] >> bits % 8):
        raise WireError("a bit stream does not end where it should")
