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
    LANES,
    LOWEST,
    count_symbols,
    pop_symbols,
    pop_two,
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
    words, states = _words_and_states(data, len(out))
    _check_end(pop_symbols(out, words, states, *model.for_decoding), words, states)


def decode_segments(outs: list[NDArray[np.uint8]], parts: list[memoryview], model: Model) -> None:
    """`decode_into` of one segment, or of two at once."""
    if len(outs) == 1 or len(outs[0]) != len(outs[1]) or lanes(len(outs[0])) == 1:
        for out, data in zip(outs, parts, strict=True):
            decode_into(out, data, model)
        return
    (words_a, states_a), (words_b, states_b) = (
        _words_and_states(data, len(out)) for out, data in zip(outs, parts, strict=True)
    )
    tables = model.for_decoding
    used_a, used_b = pop_two(outs[0], outs[1], words_a, words_b, states_a, states_b, *tables)
    _check_end(used_a, words_a, states_a)
    _check_end(used_b, words_b, states_b)


def _words_and_states(
    data: memoryview, symbols: int
) -> tuple[NDArray[np.uint16], NDArray[np.uint32]]:
    """Words with as many zeros behind them as the loops may look ahead; states that may be."""
    head = lanes(symbols) * STATE_BYTES
    states = np.frombuffer(data[:head], dtype="<u4").astype(np.uint32)
    given = np.frombuffer(data[head:], dtype="<u2")
    words = np.zeros(len(given) + LANES, dtype=np.uint16)
    words[: len(given)] = given
    if (states < LOWEST).any():
        raise WireError("a state of the entropy coder is below 65536")
    return words, states


def _check_end(used: int, words: NDArray[np.uint16], states: NDArray[np.uint32]) -> None:
    if used != len(words) - LANES or (states != LOWEST).any():
        raise WireError("entropy-coded data do not end where they should")


def most_bytes(symbols: int) -> int:
    """No segment of that many symbols is longer: a word for each, and the states."""
    return lanes(symbols) * STATE_BYTES + 2 * symbols


def check_size(size: int, symbols: int) -> None:
    """Refuse a size that states and words cannot have."""
    if size < lanes(symbols) * STATE_BYTES or size % 2:
        raise WireError(f"{symbols} entropy-coded symbols cannot have {size} bytes")
