"""Decoders of the wire format's streams, written from docs/wire.md alone; reading.py uses them."""

from __future__ import annotations

import struct
from itertools import pairwise
from math import comb


class Source:
    """Bytes, read from the front."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, n: int) -> bytes:
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self) -> int:
        byte = self.take(1)[0]
        return byte if byte < 128 else byte - 128 + (self.number() << 7)

    def finish(self, start: int, symbols: int) -> None:
        self.at = max(self.at, start + (symbols + 31) // 32)


class Bits:
    """Bits, the lowest of each byte first."""

    def __init__(self, data: bytes) -> None:
        self.value = int.from_bytes(data, "little")

    def take(self, n: int) -> int:
        found = self.value % 2**n
        self.value >>= n
        return found

    def ones(self) -> int:
        n = 0
        while self.take(1):
            n += 1
        return n


def table(source: Source, total: int) -> list[int]:
    found: list[int] = []
    while sum(found) < total:
        found.append(source.number())
        if found[-1] == 0:
            found += [0] * source.take(1)[0]
    return found + [0] * (256 - len(found))


def products(of_cells: list[int], bits: int, per_symbol: int) -> list[int]:
    weights = {}
    for symbol in range(2 ** (bits * per_symbol)):
        weight = 1
        for m in range(per_symbol):
            weight *= of_cells[symbol >> bits * m & 2**bits - 1]
        if weight:
            weights[symbol] = weight
    found, total, before, start = [0] * 256, sum(weights.values()), 0, 0
    for rank, (symbol, weight) in enumerate(weights.items()):
        before += weight
        end = rank + 1 + (2**14 - len(weights)) * before // total
        found[symbol], start = end - start, end
    return found


def rans(data: bytes, n: int, frequencies: list[int]) -> list[int]:
    lanes = 1 if n < 16384 else 4
    x = list(struct.unpack(f"<{lanes}I", data[: 4 * lanes]))
    words = iter(struct.unpack(f"<{len(data) // 2 - 2 * lanes}H", data[4 * lanes :]))
    slots = [(s, r) for s, f in enumerate(frequencies) for r in range(f)]
    out = []
    for i in range(n):
        symbol, offset = slots[x[i % lanes] % 2**14]
        state = frequencies[symbol] * (x[i % lanes] >> 14) + offset
        x[i % lanes] = state if state >= 2**16 else state << 16 | next(words)
        out.append(symbol)
    assert x == [2**16] * lanes
    assert next(words, None) is None
    return out


def segments(count: int) -> list[int]:
    return [min(65536, count - first) for first in range(0, count, 65536)]


def stream(source: Source, count: int, frequencies: list[int]) -> list[int]:
    start = source.at
    sizes = [source.number() for _ in segments(count)]
    out = []
    for n, size in zip(segments(count), sizes, strict=True):
        out += rans(source.take(size), n, frequencies)
    source.finish(start, count)
    return out


def integers(source: Source, count: int) -> list[int]:
    frequencies = table(source, 2**14)
    start = source.at
    sizes = [(source.number(), source.number()) for _ in segments(count)]
    out = []
    for n, (coded, extra) in zip(segments(count), sizes, strict=True):
        symbols = rans(source.take(coded), n, frequencies)
        bits = Bits(source.take(extra))
        for s in symbols:
            z = s if s < 16 else (4 + s % 4 << s // 4 - 2) + bits.take(s // 4 - 2)
            out.append(-(z + 1) // 2 if z % 2 else z // 2)
    source.finish(start, count)
    return out


class Coder:
    """One lane of the entropy coder, symbol by symbol."""

    def __init__(self, data: bytes) -> None:
        self.x = int.from_bytes(data[:4], "little")
        self.words = iter(struct.unpack(f"<{len(data) // 2 - 2}H", data[4:]))

    def advance(self, start: int, frequency: int) -> None:
        self.x = frequency * (self.x >> 14) + self.x % 2**14 - start
        if self.x < 2**16:
            self.x = self.x << 16 | next(self.words)

    def symbol(self, frequencies: list[int]) -> int:
        start = 0
        for s, f in enumerate(frequencies):
            if start <= self.x % 2**14 < start + f:
                self.advance(start, f)
                return s
            start += f
        raise AssertionError

    def one_of(self, m: int) -> int:
        starts = [2**14 * s // m for s in range(m + 1)]
        return self.symbol([b - a for a, b in pairwise(starts)])

    def bits(self, n: int) -> int:
        if n <= 14:
            return self.one_of(2**n) if n else 0
        low = self.one_of(2**14)
        return low + (self.bits(n - 14) << 14)

    def below(self, n: int) -> int:
        if n <= 4096:
            return self.one_of(n)
        low = len(bin(n - 1)) - 2 - 10
        high = self.one_of((n - 1 >> low) + 1)
        return (high << low) + self.bits(low)


def chunks(source: Source, count: int) -> list[int]:
    start = source.at
    spans = [(first, min(first + 2**18, count)) for first in range(0, count, 2**18)]
    sizes = []
    for _ in spans:
        nonzeros = source.number()
        sizes.append((nonzeros, source.number() if nonzeros else 0))
    out = [0] * count
    if any(nonzeros for nonzeros, _ in sizes):
        precision, mask, kinds = source.take(3)

        def scaled() -> list[int]:
            return [f << 14 - precision for f in table(source, 2**precision)]

        tables = [scaled()]
        of_class = [tables[0]]
        for i in range(8):
            if mask >> i & 1:
                tables.append(scaled())
            of_class.append(tables[-1])
        of_values = [scaled() for _ in range(kinds)]
        num_pages = (count + 65535) // 65536
        pages = source.take(num_pages) if kinds > 1 else bytes(num_pages)
        of_page = [of_values[kind] for kind in pages]
        for (first, end), (nonzeros, size) in zip(spans, sizes, strict=True):
            if nonzeros:
                found = segment_of_chunks(source.take(size), first, end, of_class, of_page)
                assert len(found) == nonzeros
                for place, value in found.items():
                    out[place] = value
    source.finish(start, sum(nonzeros for nonzeros, _ in sizes))
    return out


def segment_of_chunks(
    data: bytes, first: int, end: int, of_class: list[list[int]], of_page: list[list[int]]
) -> dict[int, int]:
    coder = Coder(data)
    before: list[int] = []
    out = {}
    for base in range(first, end, 64):
        t = sum(before[-4:])
        n = coder.symbol(of_class[min(t.bit_length(), 8)])
        before.append(n)
        rank = coder.below(comb(64, n)) if 0 < n < 64 else 0
        places = []
        for i in range(n, 0, -1):
            p = max(p for p in range(64) if comb(p, i) <= rank)
            rank -= comb(p, i)
            places.append(p)
        for p in reversed(places):
            s = coder.symbol(of_page[base // 65536])
            extra = s // 2 - 27
            z = s if s < 64 else (2 + s % 2 << extra) + coder.bits(extra)
            out[base + p] = -(z + 1) // 2 if z % 2 else z // 2
    assert coder.x == 2**16
    assert next(coder.words, None) is None
    return out
