"""Whole numbers of any size, small ones in few bits.

A number is first made non-negative (0, -1, 1, -2, ... become z = 0, 1, 2, 3, ...). Below 16, z is
its own symbol. Otherwise the symbol says the highest bit e of z and the two bits below it, 4 e + m,
and e - 2 extra bits follow as they are. So 256 symbols cover 64 bits, each at most a quarter wide,
and the entropy coder needs no escape. A sparse update may also be written as one such stream over
all coordinates, zeros included ("joint"): positions then cost nothing of their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fetchsgd.threads import run_in_order
from fetchsgd.wire import rans
from fetchsgd.wire.bit_loops import (
    bucket_symbols,
    list_nonzero,
    place_symbols,
    read_integers,
    write_extra,
)
from fetchsgd.wire.errors import WireError
from fetchsgd.wire.rans import SYMBOLS, TOTAL, Frequencies, read_table, table_bytes
from fetchsgd.wire.reader import Reader, number_bytes
from fetchsgd.wire.segments import (
    assemble,
    bit_bytes,
    bit_words,
    check_last_byte,
    read_bit_words,
    refuse_expansion,
    skip_padding,
    spans,
)

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
MOST_EXTRA = 61


def symbols_of(values: Ints) -> Bytes:
    out = np.empty(len(values), dtype=np.uint8)
    bucket_symbols(values, out)
    return out


def write(values: Ints, table: Frequencies) -> bytes:
    model = rans.Model(table)

    def segment(span: tuple[int, int]) -> tuple[bytes, bytes]:
        part = values[slice(*span)]
        return rans.encode(symbols_of(part), model), _extra(part)

    parts = list(run_in_order(segment, spans(len(values)), len(values)))
    return table_bytes(table) + _stream(parts, len(values))


def write_joint(indices: Ints, values: Ints, dim: int, table: Frequencies) -> bytes:
    """All `dim` integers, of which only those at `indices` are not zero."""
    model = rans.Model(table)

    def segment(span: tuple[int, int]) -> tuple[bytes, bytes]:
        some = slice(*np.searchsorted(indices, span))
        symbols = np.empty(span[1] - span[0], dtype=np.uint8)
        place_symbols(symbols, indices[some], symbols_of(values[some]), span[0])
        return rans.encode(symbols, model), _extra(values[some])

    parts = list(run_in_order(segment, spans(dim), dim))
    return table_bytes(table) + _stream(parts, dim)


def _extra(values: Ints) -> bytes:
    bits = bucket_symbols(values, np.empty(len(values), dtype=np.uint8))
    words = bit_words(bits)
    write_extra(values, words)
    return bit_bytes(words, bits)


def _stream(parts: list[tuple[bytes, bytes]], symbols: int) -> bytes:
    sizes = [number_bytes(len(part)) for pair in parts for part in pair]
    return assemble(b"".join(sizes), [a + b for a, b in parts], symbols)


def read(reader: Reader, count: int) -> tuple[Ints, Frequencies]:
    refuse_expansion(reader, reader.at, count)
    table = read_table(reader, SYMBOLS, TOTAL)
    parts = _read_stream(reader, count)
    model = rans.Model(table)
    out = np.empty(count, dtype=np.int64)

    def segment(task: tuple[tuple[int, int], tuple[memoryview, memoryview]]) -> None:
        (first, last), (coded, extra) = task
        symbols = np.empty(last - first, dtype=np.uint8)
        rans.decode_into(symbols, coded, model)
        _fill(symbols, extra, out[first:last])

    list(run_in_order(segment, zip(spans(count), parts, strict=True), count))
    return out, table


def read_joint(reader: Reader, dim: int, count: int) -> tuple[Ints, Ints, Frequencies]:
    """Indices and values of the `count` integers that are not zero, of `dim`."""
    refuse_expansion(reader, reader.at, dim)
    table = read_table(reader, SYMBOLS, TOTAL)
    parts = _read_stream(reader, dim)
    model = rans.Model(table)
    stretches = spans(dim)
    symbols = np.empty(dim, dtype=np.uint8)

    def decode(task: tuple[tuple[int, int], tuple[memoryview, memoryview]]) -> int:
        span, (coded, _) = task
        rans.decode_into(symbols[slice(*span)], coded, model)
        return int(np.count_nonzero(symbols[slice(*span)]))

    found = list(run_in_order(decode, zip(stretches, parts, strict=True), dim))
    ends = np.cumsum(found)
    if ends[-1] != count:
        raise WireError(f"{ends[-1]} integers are not zero, but the header says {count}")
    indices, values = (np.empty(count, dtype=np.int64) for _ in range(2))

    def fill(i: int) -> None:
        (first, last), some = stretches[i], slice(ends[i] - found[i], ends[i])
        kept = np.empty(found[i], dtype=np.uint8)
        list_nonzero(symbols[first:last], first, indices[some], kept)
        _fill(kept, parts[i][1], values[some])

    list(run_in_order(fill, range(len(parts)), dim))
    return indices, values, table


def _read_stream(reader: Reader, count: int) -> list[tuple[memoryview, memoryview]]:
    """Entropy-coded symbols and extra bits of each segment."""
    start = reader.at
    refuse_expansion(reader, start, count)
    sizes = []
    for first, last in spans(count):
        coded = reader.number("the size of a segment", rans.most_bytes(last - first))
        rans.check_size(coded, last - first)
        sizes.append((coded, reader.number("the size of extra bits", MOST_EXTRA * (last - first))))
    parts = [
        (reader.take(coded, "a segment"), reader.take(extra, "extra bits"))
        for coded, extra in sizes
    ]
    skip_padding(reader, start, count)
    return parts


def _fill(symbols: Bytes, extra: memoryview, out: Ints) -> None:
    used = read_integers(symbols, read_bit_words(extra), 8 * len(extra), out)
    if used < 0:
        raise WireError("a segment of integers has too few extra bits")
    check_last_byte(extra, used)
