"""Sets of clients as bits: one for each of a list that both sides know, lowest bit first."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fetchsgd.secure.errors import RefusedError


def num_bytes(count: int) -> int:
    return -(-count // 8)


def to_bits(members: Collection[int], everyone: Sequence[int]) -> bytes:
    out = bytearray(num_bytes(len(everyone)))
    for place, number in enumerate(everyone):
        if number in members:
            out[place // 8] |= 1 << place % 8
    return bytes(out)


def from_bits(data: bytes, everyone: Sequence[int], what: str) -> frozenset[int]:
    """The members; bits beyond the last of the list must be zero."""
    whole = int.from_bytes(data, "little")
    if len(data) != num_bytes(len(everyone)) or whole >> len(everyone):
        raise RefusedError(f"{what} names clients beyond the {len(everyone)} that there are")
    return frozenset(number for place, number in enumerate(everyone) if whole >> place & 1)
