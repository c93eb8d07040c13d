"""How many bytes each message has: fixed by the terms and the degree, whoever drops out.

Places of those who are missing are zeros, so sizes say nothing, and a simulator can count messages
that it never sends.
"""

from __future__ import annotations

from dataclasses import dataclass

from fetchsgd.secure import members, planes
from fetchsgd.secure.graph import HASH_BYTES, depth_of
from fetchsgd.secure.kinds import HEADER, KEY_BYTES, SEALED_BYTES, SIGNATURE_BYTES, Kind
from fetchsgd.secure.secret import SECRET_BYTES
from fetchsgd.secure.terms import FIXED_BYTES

ADVERT_BYTES = 3 * KEY_BYTES  # two keys and a commitment


@dataclass(frozen=True)
class Sizes:
    """Of the bodies of a round's messages."""

    cohort: int
    advertised: int
    degree: int
    cells: int
    bits: int
    totals: int

    @property
    def depth(self) -> int:
        """Of the tree; where all adverts are shown, none of its hashes are."""
        return 0 if self.degree == self.advertised - 1 else depth_of(self.advertised)

    @property
    def path(self) -> int:
        return HASH_BYTES * self.depth

    @property
    def card(self) -> int:
        """A neighbour in a roster: its advert, signature and path."""
        return ADVERT_BYTES + SIGNATURE_BYTES + self.path

    @property
    def some(self) -> int:
        """A set of neighbours."""
        return members.num_bytes(self.degree)

    def body(self, kind: Kind) -> int:
        everyone = members.num_bytes(self.cohort)
        return {
            Kind.INVITATION: FIXED_BYTES + 4 * self.cohort,
            Kind.ADVERT: ADVERT_BYTES,
            Kind.ROSTER: everyone + HASH_BYTES + self.path + self.degree * self.card,
            Kind.SHARES: HASH_BYTES + self.degree * SEALED_BYTES,
            Kind.DELIVERY: everyone + self.degree * SEALED_BYTES,
            Kind.MASKED: SIGNATURE_BYTES
            + 8 * self.totals
            + planes.num_bytes(self.cells, self.bits),
            Kind.SURVIVORS: everyone,
            Kind.AGREEMENT: HASH_BYTES,
            Kind.REQUEST: 3 * self.some + 2 * self.degree * SIGNATURE_BYTES,
            Kind.REVEAL: self.some + self.degree * SECRET_BYTES,
        }[kind]

    def message(self, kind: Kind) -> int:
        """With header and, from clients, signature."""
        from_client = kind % 2 == 0
        return HEADER.size + self.body(kind) + (SIGNATURE_BYTES if from_client else 0)


@dataclass(frozen=True)
class PhaseBytes:
    """Of all clients together: down from the server, then up to it."""

    down: int
    up: int


def protocol_bytes(
    clients: int,
    degree: int,
    cells: int,
    bits: int,
    totals: int = 1,
    *,
    advertised: int | None = None,
    shared: int | None = None,
    masked: int | None = None,
    agreed: int | None = None,
    revealed: int | None = None,
) -> dict[str, PhaseBytes]:
    """Bytes of each phase, of which so many clients answered; by default all who did before.

    `degree` is that of the graph of those who advertised.
    """
    counts = [clients]
    for given in (advertised, shared, masked, agreed, revealed):
        counts.append(counts[-1] if given is None else given)
    sizes = Sizes(clients, counts[1], degree, cells, bits, totals)
    kinds = list(Kind)
    phases = ("advertise", "share", "mask", "agree", "reveal")
    return {
        phase: PhaseBytes(
            counts[i] * sizes.message(kinds[2 * i]), counts[i + 1] * sizes.message(kinds[2 * i + 1])
        )
        for i, phase in enumerate(phases)
    }
