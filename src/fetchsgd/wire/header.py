"""The first 64 bytes of every message: what it is, how long it is, and a checksum."""

from __future__ import annotations

import struct
import zlib
from dataclasses import astuple, dataclass, replace

from fetchsgd.versions import WIRE_FORMAT, refusal
from fetchsgd.wire.errors import WireError

MAGIC = b"FSGW"
DENSE, SKETCH, SPARSE, MODEL, PERMUTED = range(1, 6)
# The kind of a sketch says which hash placed its coordinates: a reader that does not know the hash
# refuses the message.
SKETCHES = {"blocks": SKETCH, "permutation": PERMUTED}
# Above this no sum of positions needs a check for overflow.
MOST = 1 << 48

_LAYOUT = struct.Struct("<4sBBBBIIQQIIQQII")
HEADER_BYTES = _LAYOUT.size
_CHECKSUM = 4
_PREFIX = 5  # magic and version


@dataclass(frozen=True)
class Header:
    """The fields, in their order; those that a kind does not use are zero."""

    kind: int
    values: int
    positions: int
    round: int
    rows: int
    dim: int
    seed: int
    cols: int
    block: int
    count: int
    since: int = 0


def write(header: Header, sections: list[bytes]) -> bytes:
    """The whole message."""
    length = HEADER_BYTES + sum(map(len, sections))
    *fields, since = astuple(header)
    head = _LAYOUT.pack(MAGIC, WIRE_FORMAT, *fields, length, since, 0)[:-_CHECKSUM]
    checksum = zlib.crc32(head)
    for section in sections:
        checksum = zlib.crc32(section, checksum)
    return b"".join([head, struct.pack("<I", checksum), *sections])


def read(data: memoryview) -> Header:
    """Check what can go wrong on the way, then the fields; the sections follow at byte 64."""
    if len(data) >= _PREFIX:
        _check_prefix(data)
    if len(data) < HEADER_BYTES:
        raise WireError(f"a message has at least {HEADER_BYTES} bytes, this one {len(data)}")
    *fields, length, since, checksum = _LAYOUT.unpack(data[:HEADER_BYTES])
    if length != len(data):
        wrong = "cut off" if length > len(data) else "too long"
        raise WireError(f"the message is {wrong}: {len(data)} bytes, where it says {length}")
    if checksum_of(data) != checksum:
        raise WireError("the checksum is wrong: the message was damaged on its way")
    header = replace(Header(*fields[2:]), since=since)
    _check_fields(header)
    return header


def checksum_of(message: memoryview | bytes) -> int:
    """CRC-32 of everything but the checksum itself."""
    data = memoryview(message)
    return zlib.crc32(data[HEADER_BYTES:], zlib.crc32(data[: HEADER_BYTES - _CHECKSUM]))


def _check_prefix(data: memoryview) -> None:
    if data[:4] != MAGIC:
        raise WireError(f"this is not a message of fetchsgd: it begins with {bytes(data[:4])!r}")
    if data[4] != WIRE_FORMAT:
        raise WireError(refusal("the wire format", data[4], WIRE_FORMAT))


def _check_fields(header: Header) -> None:
    h = header
    if not DENSE <= h.kind <= PERMUTED:
        raise WireError(f"there is no kind {h.kind} of message")
    if h.dim > MOST or h.count > MOST:
        raise WireError(f"dim {h.dim} or count {h.count} is above 2^48")
    sketch_fields = (h.rows, h.cols, h.block, h.seed)
    if h.kind in SKETCHES.values():
        if h.rows * h.cols != h.count:
            raise WireError(f"a table of {h.rows} x {h.cols} cells cannot have {h.count} values")
    elif any(sketch_fields):
        raise WireError("rows, cols, block and seed must be zero unless the message is a sketch")
    if h.kind != SPARSE and (h.positions or h.since):
        raise WireError("only a sparse update has positions and a version that it changes")
    if h.kind in (DENSE, MODEL) and h.dim != h.count:
        raise WireError(f"dim is {h.dim}, but there are {h.count} values")
    if h.kind == SPARSE and h.count > h.dim:
        raise WireError(f"{h.count} indices cannot be distinct below dim {h.dim}")
