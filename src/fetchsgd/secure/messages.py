"""The bodies of messages, written and read; rosters.py has one more, docs/secure.md the layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fetchsgd.secure import members
from fetchsgd.secure.errors import RefusedError
from fetchsgd.secure.frames import HEADER_BYTES, frame, read_header
from fetchsgd.secure.kinds import KEY_BYTES, SIGNATURE_BYTES, Kind
from fetchsgd.secure.sizes import ADVERT_BYTES
from fetchsgd.secure.terms import Terms, read_terms


@dataclass(frozen=True)
class Advert:
    """A client's public keys for the round, as it has signed them."""

    client: int
    mask_key: bytes
    share_key: bytes
    commitment: bytes  # to the seed of its self-mask
    signature: bytes = b""

    @property
    def body(self) -> bytes:
        return self.mask_key + self.share_key + self.commitment

    def signed(self, terms: Terms) -> bytes:
        """What the signature is for."""
        return frame(Kind.ADVERT, self.client, terms, self.body)

    def message(self, terms: Terms) -> bytes:
        return self.signed(terms) + self.signature


def read_advert(client: int, body: bytes | memoryview, signature: bytes) -> Advert:
    keys = [bytes(body[at : at + KEY_BYTES]) for at in range(0, ADVERT_BYTES, KEY_BYTES)]
    return Advert(client, keys[0], keys[1], keys[2], signature)


def check_distinct(adverts: Iterable[Advert]) -> None:
    keys = [key for advert in adverts for key in (advert.mask_key, advert.share_key)]
    if len(set(keys)) != len(keys):
        raise RefusedError("two keys of a round are the same; each must be fresh")


def write_invitation(terms: Terms, number: int) -> bytes:
    return frame(Kind.INVITATION, number, terms, terms.body)


def read_invitation(message: bytes, number: int) -> Terms:
    kind, addressee, tag = read_header(message)
    if kind != Kind.INVITATION or addressee != number:
        raise RefusedError(
            f"an invitation of client {number} was expected, and {kind} of client {addressee} has"
            " come"
        )
    terms = read_terms(message[HEADER_BYTES:])
    if tag != terms.tag:
        raise RefusedError("the invitation is not that of its own terms")
    if number not in terms.cohort_set:
        raise RefusedError(f"client {number} is invited to a round of which it is no part")
    return terms


def write_places(found: Mapping[int, bytes], neighbours: Sequence[int], size: int) -> bytes:
    """What there is of each neighbour, with zeros for those of whom there is nothing."""
    nothing = bytes(size)
    return b"".join(found.get(number, nothing) for number in neighbours)


def read_places(
    body: memoryview, neighbours: Sequence[int], size: int, present: frozenset[int], what: str
) -> dict[int, bytes]:
    found = {}
    for place, number in enumerate(neighbours):
        content = bytes(body[place * size : (place + 1) * size])
        if number in present:
            found[number] = content
        elif any(content):
            raise RefusedError(f"{what} has something of client {number}, whom it leaves out")
    return found


def write_slots(found: Mapping[int, bytes], neighbours: Sequence[int], size: int) -> bytes:
    """The same after the set of those of whom there is something."""
    return members.to_bits(found.keys(), neighbours) + write_places(found, neighbours, size)


def read_slots(
    body: memoryview, neighbours: Sequence[int], size: int, what: str
) -> dict[int, bytes]:
    head = members.num_bytes(len(neighbours))
    present = members.from_bits(bytes(body[:head]), neighbours, what)
    return read_places(body[head:], neighbours, size, present, what)


@dataclass(frozen=True)
class Delivery:
    """Who has shared secrets, and what a client's neighbours have sealed for it."""

    digest: bytes  # of who has
    shared: frozenset[int]
    sealed: Mapping[int, bytes]


@dataclass(frozen=True)
class Request:
    """The shares that the server asks a client for, and the signatures that it shows for it."""

    pledges: Mapping[int, bytes]  # of neighbours who survived: shares of their seeds are asked for
    keys: frozenset[int]  # neighbours who dropped out: shares of their mask keys
    signatures: Mapping[int, bytes]  # of neighbours under the survivors' digest

    @property
    def seeds(self) -> frozenset[int]:
        return frozenset(self.pledges)


def write_request(request: Request, terms: Terms, number: int, neighbours: Sequence[int]) -> bytes:
    return frame(
        Kind.REQUEST, number, terms,
        write_slots(request.pledges, neighbours, SIGNATURE_BYTES),
        members.to_bits(request.keys, neighbours),
        write_slots(request.signatures, neighbours, SIGNATURE_BYTES),
    )  # fmt: skip


def read_request(body: memoryview, neighbours: Sequence[int]) -> Request:
    size = members.num_bytes(len(neighbours))
    first = size + len(neighbours) * SIGNATURE_BYTES
    return Request(
        read_slots(body[:first], neighbours, SIGNATURE_BYTES, "a request"),
        members.from_bits(bytes(body[first : first + size]), neighbours, "a request"),
        read_slots(body[first + size :], neighbours, SIGNATURE_BYTES, "a request"),
    )
