"""A reader of the wire format in plain Python, written from docs/wire.md alone.

It trusts its input: it is the oracle for what messages mean, not for what is refused.
"""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise
from math import comb

KINDS = ["dense", "sketch", "sparse", "model", "permuted"]


def read(message: bytes) -> dict:
    """The fields of a message that are used, with lists of Python numbers."""
    names = [
        "kind",
        "values",
        "positions",
        "round",
        "rows",
        "dim",
        "seed",
        "cols",
        "block",
        "count",
        "length",
        "since",
        "checksum",
    ]
    magic, version, *fields = struct.unpack("<4sBBBBIIQQIIQQII", message[:64])
    h = dict(zip(names, fields, strict=True))
    assert (magic, version, h["length"]) == (b"FSGW", 1, len(message))
    assert h["checksum"] == zlib.crc32(message[:60] + message[64:])
    source = Source(message[64:])
    found = {"kind": KINDS[h["kind"] - 1], "round": h["round"]}
    if h["kind"] in (2, 5):
        found |= {name: h[name] for name in ("dim", "rows", "cols", "block", "seed")}
    if h["kind"] == 3:
        found |= {"since": h["since"], "dim": h["dim"]}
    if h["positions"] in (4, 5):
        together = integers if h["positions"] == 4 else chunks
        everything = together(source, h["dim"])
        found["indices"] = [i for i, v in enumerate(everything) if v]
        found["integers"] = [v for v in everything if v]
    else:
        if h["kind"] == 3:
            found["indices"] = positions(source, h["positions"], h["dim"], h["count"])
        found |= values(source, h["values"], h["count"])
    assert not source.data[source.at :]
    return found


class Source:
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


def values(source: Source, format: int, count: int) -> dict:
    if format in (1, 2):
        width, code = (4, "f") if format == 1 else (2, "e")
        return {"floats": list(struct.unpack(f"<{count}{code}", source.take(width * count)))}
    if format == 3:
        return {"floats": [bfloat16(source.take(2)) for _ in range(count)]}
    if format == 4:
        return {"integers": integers(source, count) if count else []}
    if format == 5:
        everything = chunks(source, count)
        places = [i for i, v in enumerate(everything) if v]
        return {"of": count, "places": places, "integers": [everything[i] for i in places]}
    if format == 0x40:
        (step,) = struct.unpack("<f", source.take(4))
        return {"step": step, **values(source, 5, count)}
    if format >> 4 == 5:
        return rotated(source, format & 15, count)
    if format >> 4 == 6:
        return residues(source, format & 15 or 16, count)
    if format == 0x70:
        return magnitudes(source, count)
    return cells(source, format >> 4, format & 15, count)


def magnitudes(source: Source, count: int) -> dict:
    found = [bfloat16(source.take(2)) for _ in range(2 * -(-count // 1024))]
    packed = int.from_bytes(source.take((2 * count + 7) // 8), "little")
    return {"magnitudes": found, "codes": [packed >> 2 * i & 3 for i in range(count)]}


def rotated(source: Source, bits: int, count: int) -> dict:
    key, client, less = struct.unpack("<QQH", source.take(18))
    block = 1
    while block < min(count, 4096):
        block *= 2
    blocks = -(-count // block)
    scales = [bfloat16(source.take(2)) for _ in range(blocks)]
    number = blocks * (less + 1)
    packed = int.from_bytes(source.take((number * bits + 7) // 8), "little")
    codes = [packed >> i * bits & (1 << bits) - 1 for i in range(number)]
    return {"key": key, "client": client, "scales": scales, "codes": codes}


def residues(source: Source, bits: int, count: int) -> dict:
    step, weight, key = struct.unpack("<fIQ", source.take(16))
    block = 1
    while block < min(count, 4096):
        block *= 2
    while block > 256 and 32 * (-count % block) > count:
        block //= 2
    number = -(-count // block) * block
    packed = int.from_bytes(source.take((number * bits + 7) // 8), "little")
    found = [packed >> i * bits & (1 << bits) - 1 for i in range(number)]
    return {"step": step, "weight": weight, "key": key, "residues": found}


def bfloat16(data: bytes) -> float:
    return struct.unpack("<f", b"\0\0" + data)[0]


def cells(source: Source, form: int, bits: int, count: int) -> dict:
    runs = (count + 255) // 256
    per_symbol = {2: 4, 3: 2, 4: 2, 6: 1, 8: 1}[bits]
    stride = 256 // per_symbol
    scales = [bfloat16(source.take(2)) for _ in range(runs)]
    if form == 1 and bits in (3, 6):
        symbols = [s for _ in range(runs) for s in unpacked(source.take(stride * 3 // 4))]
    elif form == 1:
        symbols = list(source.take(runs * stride))
    else:
        if form == 2:
            frequencies = table(source, 2**14)
        else:
            frequencies = products(table(source, 2**12), bits, per_symbol)
        symbols = stream(source, runs * stride, frequencies)
    top = 2 ** (bits - 1) - 1
    levels = []
    for i in range(count):
        run, within = divmod(i, 256)
        part, j = divmod(within, stride)
        levels.append((symbols[run * stride + j] >> bits * part) % 2**bits - top)
    return {"bits": bits, "scales": scales, "levels": levels}


def unpacked(data: bytes) -> list[int]:
    q = len(data) // 3
    joined = [data[j] | data[q + j] << 8 | data[2 * q + j] << 16 for j in range(q)]
    return [joined[j] >> 6 * m & 63 for m in range(4) for j in range(q)]


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


def positions(source: Source, format: int, dim: int, count: int) -> list[int]:
    if format == 0:
        return list(range(count))
    if format == 1:
        bits = Bits(source.take((dim + 7) // 8))
        return [i for i in range(dim) if bits.take(1)]
    return golomb(source, dim, count) if format == 2 else gaps(source, dim, count)


def golomb(source: Source, dim: int, count: int) -> list[int]:
    m = max(dim * 45426 // (count * 65536), 1)
    size = 0
    while 2**size < m:
        size += 1
    spare = 2**size - m
    bits = Bits(source.data[source.at :])
    used, at, out = 0, 0, []
    for _ in range(count):
        quotient = bits.ones()
        used += quotient + 1
        rest = 0
        if size:
            rest = bits.take(size - 1)
            used += size - 1
            if rest >= spare:
                rest = 2 * rest + bits.take(1) - spare
                used += 1
        out.append(at + quotient * m + rest)
        at = out[-1] + 1
    assert bits.ones() == (dim - at) // m
    used += (dim - at) // m + 1
    source.at += (used + 7) // 8
    return out


def gaps(source: Source, dim: int, count: int) -> list[int]:
    shift, escape, ratio = struct.unpack("<BBH", source.take(4))
    reaching = [2**32]
    for _ in range(escape):
        reaching.append(reaching[-1] * ratio >> 16)
    starts = [2**32 - r >> 18 for r in reaching] + [2**14]
    frequencies = [b - a for a, b in pairwise(starts)]
    start = source.at
    sizes = [(source.number(), source.number()) for _ in segments(count)]
    at, out, total = 0, [], 0
    for i, (n, (escapes, size)) in enumerate(zip(segments(count), sizes, strict=True)):
        if i:
            assert int.from_bytes(source.take(8), "little") == at
        symbols = rans(source.take(size), n + escapes, frequencies)
        low = Bits(source.take((n * shift + 7) // 8))
        total += n + escapes
        for s in symbols:
            at += s << shift
            if s < escape:
                out.append(at + low.take(shift))
                at = out[-1] + 1
    assert at <= dim < at + (escape << shift)
    source.finish(start, total)
    return out
