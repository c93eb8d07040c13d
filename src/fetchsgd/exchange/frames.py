"""What server and client tell each other, as bytes.

A frame is a head, the fields of the message in their order, and the payload up to the end:

    4 bytes   "FSX" and the version of this format, 1
    1 byte    the kind of message: 1 work, 2 answer, 3 asks
    4 bytes   CRC-32 of everything behind it
    fields    digest 16 bytes, lineage 8 bytes; whole numbers as uint64, others as float64

All numbers are little-endian. The payload is a message of docs/wire.md, with its own header and
checksum. Whatever comes in may have been written by anybody: reading it checks every field, and
raises `RejectedError` with a sentence.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import Field, fields
from typing import Any, TypeVar

from fetchsgd.exchange.messages import Answer, Content, ResendRequest, Work
from fetchsgd.exchange.rejections import RejectedError
from fetchsgd.versions import FRAMES, refusal

NAME = b"FSX"
MAGIC = NAME + bytes([FRAMES])
HEAD = struct.Struct("<4sBI")
KINDS: dict[type[Content], int] = {Work: 1, Answer: 2, ResendRequest: 3}
TEXTS = {"digest": 16, "lineage": 8}  # bytes, written in hexadecimal elsewhere
NUMBERS = {"int": "<Q", "float": "<d"}

Wanted = TypeVar("Wanted", bound=Content)


def to_frame(content: Content) -> bytes:
    """The bytes of a message."""
    parts = [_written(field, getattr(content, field.name)) for field in _fields(type(content))]
    body = b"".join(parts)
    return HEAD.pack(MAGIC, KINDS[type(content)], zlib.crc32(body)) + body


def from_frame(data: bytes, *kinds: type[Wanted]) -> Wanted:
    """One of these kinds of messages, or RejectedError."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise RejectedError("header", f"a message is bytes, not {type(data).__name__}")
    data = bytes(data)
    if data.startswith(NAME) and data[3:4] not in (b"", MAGIC[3:]):
        raise RejectedError("header", refusal("frames", data[3], FRAMES))
    if len(data) < HEAD.size or not data.startswith(MAGIC):
        raise RejectedError("header", "the bytes are not a message of fetchsgd, or of another form")
    _, number, checksum = HEAD.unpack_from(data)
    by_number = {KINDS[kind]: kind for kind in kinds}
    if number not in by_number:
        names = " or ".join(kind.kind for kind in kinds)
        raise RejectedError("header", f"the message is none of those expected here: {names}")
    kind, body = by_number[number], data[HEAD.size :]
    if zlib.crc32(body) != checksum:
        raise RejectedError("undecodable", "the message is damaged: its checksum is wrong")
    if len(body) < overhead(kind) - HEAD.size:
        raise RejectedError("undecodable", "the message ends too soon")
    return _read(kind, body)


def overhead(kind: type[Content]) -> int:
    """Bytes of a frame without its payload."""
    return HEAD.size + sum(_size(field) for field in _fields(kind))


def _read(kind: type[Wanted], body: bytes) -> Wanted:
    values: dict[str, Any] = {}
    at = 0
    for field in _fields(kind):
        end = len(body) if field.name == "payload" else at + _size(field)
        part, at = body[at:end], end
        if field.name == "payload":
            values[field.name] = part
        elif field.name in TEXTS:
            values[field.name] = part.hex()
        else:
            (values[field.name],) = struct.unpack(NUMBERS[str(field.type)], part)
    if at != len(body):
        raise RejectedError("undecodable", f"{len(body) - at} bytes are left after the message")
    return kind(**values)


def _fields(kind: type[Content]) -> tuple[Field[Any], ...]:
    found: tuple[Field[Any], ...] = fields(kind)  # type: ignore[arg-type]
    return found


def _size(field: Field[Any]) -> int:
    if field.name == "payload":
        return 0
    return TEXTS.get(field.name, 8)


def _written(field: Field[Any], value: Any) -> bytes:
    if field.name == "payload":
        return bytes(value)
    if field.name in TEXTS:
        size = TEXTS[field.name]
        assert re.fullmatch(rf"[0-9a-f]{{{2 * size}}}", value), (field.name, value)
        return bytes.fromhex(value)
    return struct.pack(NUMBERS[str(field.type)], value)
