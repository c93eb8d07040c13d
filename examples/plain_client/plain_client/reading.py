"""A reader of the wire format in plain Python, written from docs/wire.md alone.

It trusts its input: it is the oracle for what messages mean, not for what is refused.
"""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise

from plain_client.decoding import (
    Bits,
    Source,
    chunks,
    integers,
    products,
    rans,
    segments,
    stream,
    table,
)

VERSION = 1
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
    assert (magic, h["length"]) == (b"FSGW", len(message))
    if version != VERSION:
        raise ValueError(
            f"the message is in version {version} of the wire format, and this side speaks "
            f"version {VERSION}"
        )
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
