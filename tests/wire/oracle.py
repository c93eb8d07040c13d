"""A reader of the wire format in plain Python, written from docs/wire.md alone.

It trusts its input: it is the oracle for what messages mean, not for what is refused.
"""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise

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
    if h["positions"] == 4:
        everything = integers(source, h["dim"])
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
    return cells(source, format >> 4, format & 15, count)


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
