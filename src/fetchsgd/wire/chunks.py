"""Sparse integers: which of them are not zero, and their values, in chunks of 64 coordinates.

A chunk is its number n of nonzeros, then which n of 64 they are, as the rank of that set among all
of its size, then the values. Ranks are equally likely, so that for independent numbers this is the
entropy and nothing is lost, at any density. Where density varies, as between the layers and
channels of a gradient, n is coded by what the four chunks before have: dense neighbourhoods and
dead ones get tables of their own. So do values by the page of 2^16 coordinates that they are in:
layers differ in how large their numbers are, and where a model has whole steps, in which occur.

Segments of 2^18 coordinates are independent of each other. Each is one run of the entropy coder,
in which counts, ranks and values follow each other, so that a segment costs six bytes or so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from fetchsgd.threads import run_in_order
from fetchsgd.wire.chunk_coder_loops import (
    BAD_RANK,
    BEYOND,
    MOST_SYMBOLS,
    TOO_MANY,
    count_digits,
    list_symbols,
    push_all,
    read_chunks,
)
from fetchsgd.wire.chunk_loops import CHUNK, CLASSES, DIRECT, PAGE, count_chunks
from fetchsgd.wire.errors import WireError
from fetchsgd.wire.rans import (
    PRECISION,
    STATE_BYTES,
    read_table,
    table_bytes,
)
from fetchsgd.wire.rans_loops import LOWEST
from fetchsgd.wire.reader import Reader, number_bytes
from fetchsgd.wire.segments import refuse_expansion, shortest, skip_padding

SPAN = 1 << 18  # coordinates of a segment
COUNTS = CHUNK + 1
LEVELS = DIRECT + 2 * (64 - 6)  # symbols of values
# Enough for as many frequencies as there are symbols.
LEAST_PRECISION = 8
MOST_TABLES = 8
# The most that a segment can take: every symbol a word.
MOST_SEGMENT = STATE_BYTES + 2 * MOST_SYMBOLS * (SPAN // CHUNK)

Ints = NDArray[np.int64]
SENTENCES = {
    TOO_MANY: "chunks have another number of nonzeros than their segment says",
    BAD_RANK: "a set of places has a rank that no set has",
    BEYOND: "chunks have places beyond the last coordinate",
}


@dataclass(frozen=True, eq=False)
class ChunkCode:
    """What a writer chooses: which classes share a table, and all tables.

    precision: frequencies are multiples of 2^(14 - precision), and written without that factor.
    groups: the table of each class; it begins with 0 and goes up by at most 1.
    pages: the table of values of each page.
    """

    precision: int
    groups: Ints  # of CLASSES
    counts: NDArray[np.int64]  # a row of COUNTS frequencies for each group
    values: NDArray[np.int64]  # a row of LEVELS frequencies for each table of values
    pages: NDArray[np.uint8]

    @cached_property
    def for_coding(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Frequency and start of each symbol in one number."""
        return _packed(self.counts), _packed(self.values)

    @cached_property
    def for_decoding(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The symbol of each of 2^14 slots."""
        return _slots(self.counts), _slots(self.values)

    def tables(self) -> bytes:
        mask = sum(1 << int(i) for i in np.flatnonzero(np.diff(self.groups)))
        tables = [table >> PRECISION - self.precision for table in (*self.counts, *self.values)]
        pages = self.pages.tobytes() if len(self.values) > 1 else b""
        head = bytes([self.precision, mask, len(self.values)])
        return head + b"".join(map(table_bytes, tables)) + pages


def _slots(frequencies: NDArray[np.int64]) -> NDArray[np.uint8]:
    names = np.arange(frequencies.shape[1], dtype=np.uint8)
    return np.stack([np.repeat(names, row) for row in frequencies])


def _packed(frequencies: NDArray[np.int64]) -> NDArray[np.uint32]:
    starts = np.cumsum(frequencies, axis=1) - frequencies
    found: NDArray[np.uint32] = (frequencies << 16 | starts).astype(np.uint32)
    return found


@lru_cache(maxsize=1)
def choose() -> NDArray[np.int64]:
    """In row n and column p: how many sets of n places there are among p."""
    return np.array([[comb(p, n) for p in range(CHUNK + 1)] for n in range(CHUNK + 1)])


def num_chunks(count: int) -> int:
    return -(-count // CHUNK)


def num_pages(count: int) -> int:
    return -(-count // (PAGE * CHUNK))


def segments(count: int) -> list[tuple[int, int]]:
    """First and one past the last coordinate of each segment."""
    return [(first, min(first + SPAN, count)) for first in range(0, count, SPAN)]


def write_sparse(indices: Ints, values: Ints, count: int, code: ChunkCode | None) -> bytes:
    """Integers of which those at `indices` are not zero; without nonzeros there is no code."""
    spans = segments(count)
    edges = np.searchsorted(indices, [first for first, _ in spans] + [count]).tolist()

    def segment(i: int) -> bytes:
        some = slice(edges[i], edges[i + 1])
        if code is None or edges[i] == edges[i + 1]:
            return b""
        return _write_segment(indices[some], values[some], *spans[i], code)

    parts = list(run_in_order(segment, range(len(spans)), count))
    directory = bytearray()
    for i, part in enumerate(parts):
        directory += number_bytes(edges[i + 1] - edges[i])
        if part:
            directory += number_bytes(len(part))
    tables = b"" if code is None else code.tables()
    out = b"".join([directory, tables, *parts])
    return out.ljust(shortest(len(indices)), b"\0")


def _write_segment(indices: Ints, values: Ints, first: int, end: int, code: ChunkCode) -> bytes:
    counts = np.zeros(num_chunks(end - first), dtype=np.uint8)
    count_chunks(indices, first, counts)
    full = np.count_nonzero(counts)
    room = len(counts) + 5 * full + len(values) + count_digits(values)
    entries = np.empty(room, dtype=np.uint32)
    used = list_symbols(
        indices, values, first, counts, code.groups, code.pages[first // (PAGE * CHUNK) :],
        *code.for_coding, choose(), entries,
    )  # fmt: skip
    words = np.empty(used + 1, dtype=np.uint16)
    state, below = push_all(entries[:used], words)
    head = int(state).to_bytes(STATE_BYTES, "little")
    return head + words[below + 1 :].astype("<u2").tobytes()


@dataclass(frozen=True)
class _Segment:
    """A segment that is not all zeros, as the directory has it."""

    first: int
    end: int
    place: int  # of its first nonzero among all
    nonzeros: int
    size: int


def read_sparse(
    reader: Reader, count: int, expected: int | None = None
) -> tuple[Ints, Ints, ChunkCode | None]:
    """Places and values of the nonzeros among `count` integers, and how they were written.

    expected: how many nonzeros there must be, if that is known.
    """
    start = reader.at
    found = _read_directory(reader, count)
    nonzeros = sum(part.nonzeros for part in found)
    if expected is not None and nonzeros != expected:
        raise WireError(f"{nonzeros} integers are not zero, but the header says {expected}")
    refuse_expansion(reader, start, nonzeros)
    code = _read_code(reader, num_pages(count)) if nonzeros else None
    parts = [(part, reader.take(part.size, "a segment of chunks")) for part in found]
    skip_padding(reader, start, nonzeros)
    indices, values = (np.empty(nonzeros, dtype=np.int64) for _ in range(2))

    def decode(task: tuple[_Segment, memoryview]) -> None:
        part, data = task
        assert code is not None
        some = slice(part.place, part.place + part.nonzeros)
        _read_segment(data, part, code, indices[some], values[some])

    list(run_in_order(decode, parts, SPAN * len(parts)))
    return indices, values, code


def _read_directory(reader: Reader, count: int) -> list[_Segment]:
    """Nothing is kept for a segment of zeros, which has one byte; others have six at least."""
    if -(-count // SPAN) > reader.left:
        raise WireError(f"{count} sparse integers cannot follow from {reader.left} bytes")
    found, place = [], 0
    for first in range(0, count, SPAN):
        end = min(first + SPAN, count)
        nonzeros = reader.number("the number of nonzeros of a segment", end - first)
        if nonzeros:
            size = reader.number("the size of a segment", MOST_SEGMENT)
            if size < STATE_BYTES or size % 2:
                raise WireError(f"a segment of chunks cannot have {size} bytes")
            found.append(_Segment(first, end, place, nonzeros, size))
            place += nonzeros
    return found


def _read_code(reader: Reader, pages: int) -> ChunkCode:
    precision = reader.byte("the precision of frequencies")
    if not LEAST_PRECISION <= precision <= PRECISION:
        raise WireError(
            f"frequencies have a precision from {LEAST_PRECISION} to {PRECISION}, not {precision}"
        )
    mask = reader.byte("the groups of classes")
    groups = np.cumsum([0] + [mask >> i & 1 for i in range(CLASSES - 1)])
    kinds = reader.byte("the number of tables of values")
    if not 1 <= kinds <= MOST_TABLES:
        raise WireError(f"there are from 1 to {MOST_TABLES} tables of values, not {kinds}")
    total, factor = 1 << precision, 1 << PRECISION - precision
    counts = [read_table(reader, COUNTS, total) for _ in range(int(groups[-1]) + 1)]
    values = np.stack([read_table(reader, LEVELS, total) for _ in range(kinds)])
    if values[:, 0].any():
        raise WireError("a table of nonzeros has a frequency for 0")
    if kinds > 1:
        used = np.frombuffer(reader.take(pages, "the tables of pages"), dtype=np.uint8).copy()
        if used.max() >= kinds:
            raise WireError(f"a page has table {used.max()} of {kinds}")
    else:
        used = np.zeros(pages, dtype=np.uint8)
    return ChunkCode(precision, groups, np.stack(counts) * factor, values * factor, used)


def _read_segment(
    data: memoryview, part: _Segment, code: ChunkCode, indices: Ints, values: Ints
) -> None:
    state = int.from_bytes(data[:STATE_BYTES], "little")
    if state < LOWEST:
        raise WireError("a state of the entropy coder is below 65536")
    given = np.frombuffer(data[STATE_BYTES:], dtype="<u2")
    words = np.zeros(len(given) + MOST_SYMBOLS, dtype=np.uint16)
    words[: len(given)] = given
    (count_lookup, value_lookup), (count_codes, value_codes) = code.for_decoding, code.for_coding
    last, used = read_chunks(
        np.uint32(state), words, part.first, part.end, num_chunks(part.end - part.first),
        code.groups, code.pages[part.first // (PAGE * CHUNK) :],
        count_lookup, count_codes, value_lookup, value_codes, choose(), indices, values,
    )  # fmt: skip
    if used in SENTENCES:
        raise WireError(SENTENCES[used])
    if used != len(given) or last != LOWEST:
        raise WireError("entropy-coded data do not end where they should")
