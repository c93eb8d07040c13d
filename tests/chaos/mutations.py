"""Hostile messages: whole ones, changed where their structure is, and then repaired.

A mutation that leaves the checksum wrong is refused in the first microsecond and tests nothing. So
every message here gets past magic, version, length and checksum, and is wrong further in.
"""

from __future__ import annotations

import struct
from random import Random

from fetchsgd.versions import WIRE_FORMAT
from fetchsgd.wire.header import HEADER_BYTES, MAGIC, checksum_of

# Where the header's numbers are: offset, bytes. Magic, version, length and checksum are repaired.
FIELDS = (
    (5, 1), (6, 1), (7, 1), (8, 4), (12, 4), (16, 8), (24, 8), (32, 4), (36, 4), (40, 8), (56, 4),
)  # fmt: skip
LENGTH_AT, CHECKSUM_AT = 48, 60
EDGES = (
    0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 63, 64, 127, 128, 255, 256, 1023, 4096, 65535, 65536,
    2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**48, 2**48 + 1, 2**53, 2**63 - 1, 2**64 - 1,
)  # fmt: skip
MOST_BYTES = 4096


def mended(message: bytes | bytearray) -> bytes:
    """With a valid magic, version, length and checksum."""
    found = bytearray(message)
    found.extend(bytes(max(0, HEADER_BYTES - len(found))))
    found[:5] = MAGIC + bytes([WIRE_FORMAT])
    found[LENGTH_AT : LENGTH_AT + 8] = struct.pack("<Q", len(found))
    found[CHECKSUM_AT:HEADER_BYTES] = struct.pack("<I", checksum_of(found))
    return bytes(found)


def mutated(messages: list[bytes], random: Random) -> bytes:
    """One of the messages after one to four changes."""
    found = bytearray(random.choice(messages))
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        random.choice(CHANGES)(found, messages, random)
        del found[MOST_BYTES:]
    return mended(found)


def _field(found: bytearray, messages: list[bytes], random: Random) -> None:
    """A number of the header becomes another."""
    at, size = random.choice(FIELDS)
    _put(found, at, size, _number(found, at, size, random))


def _number(found: bytearray, at: int, size: int, random: Random) -> int:
    before = int.from_bytes(found[at : at + size], "little")
    kind = random.random()
    if kind < 0.4:
        return before + random.choice((-2, -1, 1, 2))
    return random.choice(EDGES) if kind < 0.8 else random.getrandbits(8 * size)


def _put(found: bytearray, at: int, size: int, number: int) -> None:
    found[at : at + size] = (number % 256**size).to_bytes(size, "little")


def _place(found: bytearray, random: Random) -> int:
    """In the sections, and more often where they begin: there parameters and directories are."""
    length = len(found) - HEADER_BYTES
    if length <= 0:
        return HEADER_BYTES
    return HEADER_BYTES + random.randrange(min(length, 48) if random.random() < 0.6 else length)


def _byte(found: bytearray, messages: list[bytes], random: Random) -> None:
    at = _place(found, random)
    found[at : at + 1] = bytes([random.choice((0, 1, 127, 128, 255, random.randrange(256)))])


def _bit(found: bytearray, messages: list[bytes], random: Random) -> None:
    at = _place(found, random)
    if at < len(found):
        found[at] ^= 1 << random.randrange(8)


def _whole_number(found: bytearray, messages: list[bytes], random: Random) -> None:
    at, size = _place(found, random), random.choice((2, 4, 8))
    _put(found, at, size, _number(found, at, size, random))


def _cut(found: bytearray, messages: list[bytes], random: Random) -> None:
    at = _place(found, random)
    del found[at : at + random.choice((1, 1, 2, 4, 8, 64, 4096))]


def _repeat(found: bytearray, messages: list[bytes], random: Random) -> None:
    at, size = _place(found, random), random.choice((1, 2, 4, 8, 64, 512))
    found[at:at] = found[at : at + size] * random.choice((1, 1, 2, 8))


def _insert(found: bytearray, messages: list[bytes], random: Random) -> None:
    at, size = _place(found, random), random.choice((1, 2, 4, 8, 64))
    fill = random.choice((b"\0" * size, b"\xff" * size, random.randbytes(size)))
    found[at:at] = fill


def _other_sections(found: bytearray, messages: list[bytes], random: Random) -> None:
    """The header of one message before what follows that of another."""
    found[HEADER_BYTES:] = random.choice(messages)[HEADER_BYTES:]


def _spliced(found: bytearray, messages: list[bytes], random: Random) -> None:
    """From some place on, another message."""
    other = random.choice(messages)
    at = _place(found, random)
    found[at:] = other[at:]


CHANGES = (
    _field, _field, _byte, _bit, _whole_number, _cut, _repeat, _insert, _other_sections, _spliced,
)  # fmt: skip
