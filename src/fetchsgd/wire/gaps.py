"""Sorted positions as entropy-coded gaps, in as many bits as the best code for random positions.

A gap is the number of coordinates that are skipped before an index. For random positions gaps
follow a geometric law, which has no memory, so a gap of at least `escape << shift` is an escape
symbol that skips that many, and then a gap like any other. A shorter one is a symbol,
`gap >> shift`, and `shift` low bits as they are. Escapes also go on after the last index while a
whole one fits.

The frequencies of the symbols are those of the geometric law, not the ones that occur, so the code
length is linear in the gaps: the size follows from dim and the number of indices, wherever they
lie, and the ledger knows it without encoding. Three small numbers stand for the whole table.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fetchsgd.threads import run_in_order
from fetchsgd.wire import rans
from fetchsgd.wire.bit_loops import count_escapes, read_gaps, write_gaps
from fetchsgd.wire.errors import WireError
from fetchsgd.wire.rans import PRECISION, SYMBOLS, TOTAL, Frequencies
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
# With dim below 2^48 no sum of steps can overflow 63 bits.
MOST_SHIFT = 48
BASE_BYTES = 8
# Symbols are between a 32nd and a 64th of the mean gap wide, and an escape is one in 32.
FINENESS = 32
ESCAPE_HALVINGS = 5


@dataclass(frozen=True)
class GapCode:
    """Gaps in steps of 2^shift, fewer than `escape`; `ratio` / 2^16 of them reach the next step."""

    shift: int
    escape: int
    ratio: int

    def frequencies(self) -> Frequencies:
        """Of symbols 0 to `escape`: the geometric law, in 32-bit fixed point."""
        reaching, starts = 1 << 32, []
        for _ in range(self.escape + 1):
            starts.append(((1 << 32) - reaching) >> 32 - PRECISION)
            reaching = reaching * self.ratio >> 16
        found = np.zeros(SYMBOLS, dtype=np.int64)
        found[: self.escape + 1] = np.diff([*starts, TOTAL])
        return found

    @property
    def step(self) -> int:
        return self.escape << self.shift


def best_code(dim: int, count: int) -> GapCode:
    """The code for `count` random positions of `dim`."""
    shift = min(max(math.floor(math.log2(dim / count / FINENESS)), 0), MOST_SHIFT)
    decay = -math.log1p(-count / dim) * 2**shift
    ratio = min(max(round(math.exp(-decay) * 2**16), 1), 2**16 - 1)
    escape = min(max(round(ESCAPE_HALVINGS * math.log(2) / decay), 1), SYMBOLS - 1)
    return GapCode(shift, escape, ratio)


def write(indices: Ints, dim: int, code: GapCode) -> bytes:
    model = rans.Model(code.frequencies())
    count = len(indices)

    def segment(span: tuple[int, int]) -> tuple[int, bytes, bytes]:
        first, last = span
        part = indices[first:last]
        base = int(indices[first - 1]) + 1 if first else 0
        escapes = count_escapes(part, base, dim if last == count else 0, code.step)
        symbols = np.empty(len(part) + escapes, dtype=np.uint8)
        words = bit_words(code.shift * len(part))
        write_gaps(part, base, code.shift, code.escape, symbols, words)
        head = base.to_bytes(BASE_BYTES, "little") if first else b""
        coded = rans.encode(symbols, model)
        return escapes, coded, head + coded + bit_bytes(words, code.shift * len(part))

    parts = list(run_in_order(segment, spans(count), count))
    sizes = [number_bytes(n) for escapes, coded, _ in parts for n in (escapes, len(coded))]
    symbols = count + sum(escapes for escapes, _, _ in parts)
    head = struct.pack("<BBH", code.shift, code.escape, code.ratio)
    return head + assemble(b"".join(sizes), [body for _, _, body in parts], symbols)


@dataclass(frozen=True)
class _Segment:
    first: int
    last: int
    escapes: int
    base: int
    coded: memoryview
    low_bits: memoryview


def read(reader: Reader, dim: int, count: int) -> tuple[Ints, GapCode]:
    """`count` indices below `dim`, for 0 < count < dim."""
    code = GapCode(*struct.unpack("<BBH", reader.take(4, "the parameters of gaps")))
    model = rans.Model(_checked(code))
    parts = _read_segments(reader, dim, count, code)
    out = np.empty(count, dtype=np.int64)

    def decode(part: _Segment) -> int:
        symbols = np.empty(part.last - part.first + part.escapes, dtype=np.uint8)
        rans.decode_into(symbols, part.coded, model)
        if part.last < count and symbols[-1] == code.escape:
            raise WireError("a segment of gaps ends with an escape")
        words = read_bit_words(part.low_bits)
        filled = out[part.first : part.last]
        end = read_gaps(symbols, words, part.base, dim, code.shift, code.escape, filled)
        return int(end)

    ends = list(run_in_order(decode, parts, count))
    if min(ends) < 0:
        raise WireError(f"gaps do not lead to {count} indices below {dim}")
    if ends[:-1] != [part.base for part in parts[1:]] or dim - ends[-1] >= code.step:
        raise WireError("a segment of gaps does not end where the next one begins")
    return out, code


def _checked(code: GapCode) -> Frequencies:
    if code.shift > MOST_SHIFT or code.escape == 0:
        raise WireError(f"there are no gaps with shift {code.shift} and escape {code.escape}")
    frequencies = code.frequencies()
    if (frequencies[: code.escape + 1] < 1).any():
        raise WireError(f"with ratio {code.ratio} some symbol of a gap has no frequency")
    return frequencies


def _read_segments(reader: Reader, dim: int, count: int, code: GapCode) -> list[_Segment]:
    start = reader.at
    refuse_expansion(reader, start, count)
    sizes, symbols = [], 0
    for first, last in spans(count):
        escapes = reader.number("the number of escapes", 32 * len(reader.data))
        symbols += last - first + escapes
        refuse_expansion(reader, start, symbols)
        here = last - first + escapes
        size = reader.number("the size of a segment", rans.most_bytes(here))
        rans.check_size(size, here)
        sizes.append((escapes, size))
    parts = []
    for (first, last), (escapes, size) in zip(spans(count), sizes, strict=True):
        head = reader.take(BASE_BYTES if first else 0, "the base of a segment")
        coded = reader.take(size, "a segment")
        bits = code.shift * (last - first)
        low_bits = reader.take((bits + 7) // 8, "the low bits of gaps")
        check_last_byte(low_bits, bits)
        base = int.from_bytes(head, "little")
        if base > dim:
            raise WireError(f"a segment of gaps begins at {base}, but dim is {dim}")
        parts.append(_Segment(first, last, escapes, base, coded, low_bits))
    skip_padding(reader, start, symbols)
    return parts
