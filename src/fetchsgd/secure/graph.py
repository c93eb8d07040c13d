"""Who is whose neighbour, and how a client can tell that nobody has chosen that for it.

Adverts are the leaves of a Merkle tree. Its root, the terms and the list of who has sent an advert
give the roster's digest, and that the order on the ring: clients sorted by a hash of digest and
number. Each client works the order out by itself and is shown that its own advert and those of its
neighbours are under the root; so a server that wants another graph can only try adverts of clients
that work with it. On the ring each client has degree / 2 neighbours on either side (a Harary
graph), or all others.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fetchsgd.secure.parameters import Parameters

HASH_BYTES = 32


@dataclass(frozen=True)
class Graph:
    """Neighbours of all who have sent an advert."""

    clients: tuple[int, ...]  # in increasing order
    parameters: Parameters
    digest: bytes  # the roster's

    @cached_property
    def ring(self) -> list[int]:
        def place(number: int) -> bytes:
            return hashlib.sha256(b"fetchsgd secure ring" + self.digest + _u32(number)).digest()

        return sorted(self.clients, key=place)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {number: place for place, number in enumerate(self.ring)}

    def neighbours(self, number: int) -> tuple[int, ...]:
        """In increasing order; neighbour i holds the share at place i + 1."""
        if self.parameters.complete:
            return tuple(other for other in self.clients if other != number)
        half, count = self.parameters.degree // 2, len(self.ring)
        at = self._places[number]
        around = [*range(at - half, at), *range(at + 1, at + half + 1)]
        return tuple(sorted(self.ring[place % count] for place in around))


def roster_digest(terms_digest: bytes, advertised: bytes, root: bytes) -> bytes:
    return hashlib.sha256(b"fetchsgd secure roster" + terms_digest + root + advertised).digest()


def shared_digest(roster: bytes, shared: bytes) -> bytes:
    return hashlib.sha256(b"fetchsgd secure shared" + roster + shared).digest()


def survivors_digest(roster: bytes, survivors: bytes) -> bytes:
    return hashlib.sha256(b"fetchsgd secure survivors" + roster + survivors).digest()


class Merkle:
    """A tree over leaves, filled up with zeros to a power of two."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        level = [_hash(b"\0", leaf) for leaf in leaves]
        level += [bytes(HASH_BYTES)] * ((1 << depth_of(len(leaves))) - len(leaves))
        self.levels = [level]
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=True)
            level = [_hash(b"\1", left + right) for left, right in pairs]
            self.levels.append(level)

    @property
    def root(self) -> bytes:
        return self.levels[-1][0]

    def path(self, place: int) -> bytes:
        """The hashes beside the way from a leaf to the root."""
        return b"".join(level[place >> height ^ 1] for height, level in enumerate(self.levels[:-1]))


def depth_of(leaves: int) -> int:
    return (leaves - 1).bit_length()


def is_under(root: bytes, leaf: bytes, place: int, path: bytes) -> bool:
    """That the leaf stands at this place of the tree; the path has the depth's length."""
    found = _hash(b"\0", leaf)
    for start in range(0, len(path), HASH_BYTES):
        beside = path[start : start + HASH_BYTES]
        found = _hash(b"\1", beside + found if place & 1 else found + beside)
        place >>= 1
    return found == root


def _hash(kind: bytes, content: bytes) -> bytes:
    return hashlib.sha256(kind + content).digest()


def _u32(number: int) -> bytes:
    return struct.pack("<I", number)
