"""Range coding with asymmetric numeral systems (Duda 2013): frequent symbols take few bits.

Frequencies are an input, so that each caller brings those that suit its data: whole numbers that
add up to 2^14, at least 1 for a symbol that occurs. They come from counts, and are then written in
front of the symbols, or from a law that reader and writer know. The loops are in rans_loops.py, the
bytes are specified in docs/wire.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fetchsgd.wire.errors import WireError
from fetchsgd.wire.rans_loops import (
    BAD_END,
    BAD_STATE,
    LANES,
    LOWEST,
    count_symbols,
    list_frequencies,
    pop_segments,
    push_symbols,
)
from fetchsgd.wire.reader import Reader, number_bytes

SYMBOLS = 256
PRECISION = 14
TOTAL = 1 << PRECISION
# A segment with fewer symbols has one lane: the other states would be a visible part of it.
SHORT = 1 << 14
STATE_BYTES = 4

Frequencies = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Model:
    """Frequencies of the 256 symbols, which add up to 2^14, and what the loops look up."""

    frequencies: Frequencies

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        return np.cumsum(self.frequencies) - self.frequencies

    @cached_property
    def for_coding(self) -> tuple[NDArray[np.uint64], ...]:
        """Frequencies, starts, and 2^46 / frequency rounded up."""
        reciprocals = -(-(1 << 46) // np.maximum(self.frequencies, 1))
        return tuple(a.astype(np.uint64) for a in (self.frequencies, self.starts, reciprocals))

    @cached_property
    def for_decoding(self) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
        """The symbol of each of 2^14 slots; frequency and start of each symbol in one number."""
        lookup = np.repeat(np.arange(SYMBOLS, dtype=np.uint8), self.frequencies)
        # A frequency of 2^14 is the only one of 15 bits, and still fits above a start.
        return lookup, (self.frequencies << 16 | self.starts).astype(np.uint32)

    def bits(self, counts: NDArray[np.int64]) -> float:
        """Bits that these numbers of each symbol take; each that occurs has a frequency."""
        used = counts > 0
        return float((counts[used] * np.log2(TOTAL / self.frequencies[used])).sum())


def lanes(symbols: int) -> int:
    """States of a segment with that many symbols."""
    return 1 if symbols < SHORT else LANES


def histogram(symbols: NDArray[np.uint8]) -> NDArray[np.int64]:
    """How often each symbol occurs."""
    counts: NDArray[np.int64] = count_symbols(symbols)
    return counts


def normalise(counts: NDArray[np.int64], total: int) -> Frequencies:
    """Frequencies that add up to `total`, in proportion to counts, at least 1 where one occurs."""
    scaled = counts * (total / counts.sum())
    found: Frequencies = np.maximum(np.floor(scaled), counts > 0).astype(np.int64)
    missing = total - int(found.sum())
    if missing > 0:
        best = np.argsort(np.where(counts > 0, found - scaled, np.inf), kind="stable")
        found[best[:missing]] += 1
    for _ in range(-missing):
        # One less where that lengthens the message least.
        loss = np.full(len(counts), np.inf)
        np.divide(counts, found - 1, out=loss, where=found > 1)
        found[np.argmin(loss)] -= 1
    return found


def table_bytes(frequencies: Frequencies) -> bytes:
    """Each frequency as LEB128 up to the last that is not 0; after a 0, how many more follow."""
    out = bytearray()
    zeros = 0
    for frequency in _up_to_last(frequencies):
        if frequency == 0:
            zeros += 1
            continue
        if zeros:
            out += bytes([0, zeros - 1])
            zeros = 0
        out += number_bytes(frequency)
    return bytes(out)


def _up_to_last(frequencies: Frequencies) -> Iterable[int]:
    values: list[int] = frequencies[: int(np.flatnonzero(frequencies)[-1]) + 1].tolist()
    return values


def read_table(reader: Reader, size: int, total: int) -> Frequencies:
    """The opposite of `table_bytes`: a table of `size` entries ends where the sum is met."""
    found = np.zeros(size, dtype=np.int64)
    ahead = np.frombuffer(reader.data[reader.at : reader.at + 3 * size + 2], dtype=np.uint8)
    ahead.flags.writeable = False  # whatever the message is in, so that there is one loop
    used = list_frequencies(ahead, found, total)
    if used < 0:
        return _read_table_slowly(reader, size, total)
    reader.take(used, "frequencies")
    return found


def _read_table_slowly(reader: Reader, size: int, total: int) -> Frequencies:
    """With a sentence about what is wrong."""
    found = np.zeros(size, dtype=np.int64)
    at, left, after_zeros = 0, total, False
    while left > 0:
        if at >= size:
            raise WireError(f"frequencies add up to {total - left}, not to {total}")
        frequency = reader.number("a frequency", total)
        if frequency == 0:
            if after_zeros:
                raise WireError("a run of zero frequencies is written in two parts")
            at += 1 + reader.byte("a run of zero frequencies")
        elif frequency > left:
            raise WireError(f"frequencies add up to more than {total}")
        else:
            found[at] = frequency
            left -= frequency
            at += 1
        after_zeros = frequency == 0
    return found


def encode(symbols: NDArray[np.uint8], model: Model) -> bytes:
    """States, then words. Every symbol must have a frequency."""
    states = np.full(lanes(len(symbols)), LOWEST, dtype=np.uint64)
    words = np.empty(len(symbols) + 1, dtype=np.uint16)
    below = push_symbols(symbols, words, states, *model.for_coding)
    return states.astype("<u4").tobytes() + words[below + 1 :].astype("<u2").tobytes()


def decode_into(out: NDArray[np.uint8], data: memoryview, model: Model) -> None:
    """The opposite of `encode`: symbols until `out` is full, which must use up all of `data`."""
    Segments(data, [len(data)], max(len(out), 1)).decode_into(out, 0, 1, model)


class Segments:
    """What `encode` has made of stretches of `symbols` symbols each, but the last of them.

    sizes: bytes of each, one behind another in `data`; `check_size` has passed all.
    """

    def __init__(self, data: memoryview, sizes: list[int], symbols: int) -> None:
        # The loops may look ahead, beyond the last word.
        self.words = np.zeros(len(data) // 2 + LANES, dtype=np.uint16)
        self.words[: len(self.words) - LANES] = np.frombuffer(data, dtype="<u2")
        self.starts = np.cumsum([0, *sizes]) // 2
        self.symbols = symbols

    def decode_into(self, out: NDArray[np.uint8], first: int, last: int, model: Model) -> None:
        """Segments [first, last) to their places in `out`, which is for the whole stream."""
        wrong = pop_segments(
            out, self.words, self.starts, self.symbols, SHORT, first, last, *model.for_decoding
        )
        if wrong == BAD_STATE:
            raise WireError("a state of the entropy coder is below 65536")
        if wrong == BAD_END:
            raise WireError("entropy-coded data do not end where they should")


def most_bytes(symbols: int) -> int:
    """No segment of that many symbols is longer: a word for each, and the states."""
    return lanes(symbols) * STATE_BYTES + 2 * symbols


def check_size(size: int, symbols: int) -> None:
    """Refuse a size that states and words cannot have."""
    if size < lanes(symbols) * STATE_BYTES or size % 2:
        raise WireError(f"{symbols} entropy-coded symbols cannot have {size} bytes")
