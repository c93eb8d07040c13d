"""A client's side: five answers, each a function of its state and one message.

    join      invitation  -> advert       keys for this round alone, signed
    share     roster      -> shares       its two secrets, shared among its neighbours
    mask      delivery    -> masked       its vector under its self-mask and a mask per neighbour
    agree     survivors   -> agreement    whom it was told to have survived, signed
    reveal    request     -> reveal       a share of each neighbour: of the seed if it survived,
                                          of the key if it dropped out, and never of both

State goes in and comes out, as bytes where it must outlast a process; it holds secrets. A message
that is not as it must be raises RefusedError, and the state is as it was. The journal keeps a
client from signing two different messages of one kind in a round, even if its state is lost and it
begins again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jaxtyping import UInt32, UInt64
from numpy import ndarray

from fetchsgd.errors import UserError
from fetchsgd.secure import keys, masks, members, planes, shamir
from fetchsgd.secure.errors import RefusedError
from fetchsgd.secure.frames import frame, is_signed, open_frame, sign
from fetchsgd.secure.graph import shared_digest, survivors_digest
from fetchsgd.secure.journal import Journal
from fetchsgd.secure.keys import OwnKeys
from fetchsgd.secure.kinds import SEALED_BYTES, SHARE_BYTES, SIGNATURE_BYTES, Kind
from fetchsgd.secure.messages import (
    Advert,
    Delivery,
    Request,
    read_invitation,
    read_places,
    read_request,
    write_slots,
)
from fetchsgd.secure.rosters import Roster, read_roster
from fetchsgd.secure.secret import SECRET_BYTES, Secret
from fetchsgd.secure.state import ClientState, begin
from fetchsgd.secure.terms import NO_CONTEXT, Policy, Terms


@dataclass(frozen=True)
class Client:
    """Who a client is, in all rounds."""

    number: int
    identity: Ed25519PrivateKey
    directory: Mapping[int, bytes]  # every client's public key: who is whom
    journal: Journal = field(default_factory=Journal)
    policy: Policy = field(default_factory=Policy)

    def join(self, invitation: bytes, seed: Secret | None = None) -> tuple[ClientState, bytes]:
        """Begin a round; only tests give a seed."""
        terms = read_invitation(invitation, self.number)
        self.policy.check(terms)
        if not terms.cohort_set <= self.directory.keys():
            raise RefusedError("the cohort has clients of whom the directory has no key")
        state = ClientState(Secret.random() if seed is None else seed, invitation)
        return state, self._seal(Kind.ADVERT, terms, self._advert(state, terms).body)

    def share(self, state: ClientState, roster: bytes) -> tuple[ClientState, bytes]:
        terms = begin(state, "roster")
        seen = self._roster(state, terms, roster, known=False)
        own = OwnKeys.derive(state.seed, terms, self.number)
        digest, found = seen.graph.digest, seen.graph.parameters
        self.policy.check_graph(found)
        random = masks.keystream(
            keys.polynomial_key(state.seed, terms, self.number, digest),
            (found.threshold - 1) * SHARE_BYTES,
        )
        shares = shamir.split(own.secrets(), random, found.threshold, found.degree)
        sealed = [
            keys.seal_share(
                own.share, seen.adverts[other].share_key, share.tobytes(), terms,
                (self.number, other), digest,
            )
            for other, share in zip(seen.neighbours, shares, strict=True)
        ]  # fmt: skip
        message = self._seal(Kind.SHARES, terms, digest, *sealed)
        return replace(state, roster=roster), message

    def mask(
        self,
        state: ClientState,
        delivery: bytes,
        cells: UInt32[ndarray, " cells"],
        totals: UInt64[ndarray, " totals"],
        context: bytes = NO_CONTEXT,
    ) -> tuple[ClientState, bytes]:
        """`context` is the digest of what the vector was computed from, as the client sees it."""
        terms = begin(state, "delivery")
        _check_input(terms, cells, totals)
        if context != terms.context:
            raise RefusedError(
                "the vector was computed from something else than the terms say, which are those of"
                " all clients"
            )
        seen = self._roster(state, terms, state.roster)
        found = self._delivery(seen, delivery)
        if len(found.sealed) < seen.graph.parameters.threshold:
            raise RefusedError(
                f"only {len(found.sealed)} of the neighbours have shared their secrets, but"
                f" {seen.graph.parameters.threshold} must"
            )
        own = OwnKeys.derive(state.seed, terms, self.number)
        streams = [(keys.self_mask_key(own.self_mask, terms, self.number), False)]
        for other in sorted(found.sealed):
            pair = (self.number, other)
            key = keys.pair_mask_key(own.mask, seen.adverts[other].mask_key, terms, pair)
            streams.append((key, other < self.number))
        words, sums = planes.pack(cells, terms.bits), totals.astype("<u8")
        masks.add_masks(sums, words, terms.bits, streams)
        pledge = self._seal(Kind.PLEDGE, terms, found.digest)[-SIGNATURE_BYTES:]
        message = self._seal(
            Kind.MASKED,
            terms,
            pledge,
            sums.tobytes(),
            words.astype("<u8", copy=False).data.cast("B"),
        )
        return replace(state, delivery=delivery), message

    def agree(self, state: ClientState, survivors: bytes) -> tuple[ClientState, bytes]:
        terms = begin(state, "survivors")
        seen = self._roster(state, terms, state.roster)
        bits, _ = self._survivors(state, seen, survivors)
        message = self._seal(Kind.AGREEMENT, terms, survivors_digest(seen.graph.digest, bits))
        return replace(state, survivors=survivors), message

    def reveal(self, state: ClientState, request: bytes) -> tuple[ClientState, bytes]:
        terms = begin(state, "request")
        seen = self._roster(state, terms, state.roster)
        body = open_frame(request, Kind.REQUEST, terms, self.number, seen.sizes.body(Kind.REQUEST))
        asked = read_request(body, seen.neighbours)
        bits, survived = self._survivors(state, seen, state.survivors)
        delivery = self._delivery(seen, state.delivery)
        _check_request(asked, survived, frozenset(delivery.sealed))
        self._check_pledges(seen, delivery.digest, asked)
        self._check_agreement(seen, survivors_digest(seen.graph.digest, bits), asked, survived)
        found = self._shares(state, seen, asked, delivery.sealed)
        slots = write_slots(found, seen.neighbours, SECRET_BYTES)
        return replace(state, request=request), self._seal(Kind.REVEAL, terms, slots)

    def _seal(self, kind: Kind, terms: Terms, *body: bytes | memoryview) -> bytes:
        """Sign a message, unless another one was signed in its place."""
        message = frame(kind, self.number, terms, *body)
        digest = hashlib.sha256(message).digest()
        self.journal.claim(terms, kind, digest)
        return message + sign(digest, terms, self.identity)

    def _advert(self, state: ClientState, terms: Terms) -> Advert:
        own = OwnKeys.derive(state.seed, terms, self.number)
        advert = Advert(
            self.number,
            own.mask.public_key().public_bytes_raw(),
            own.share.public_key().public_bytes_raw(),
            keys.commitment(own.self_mask, terms, self.number),
        )
        digest = hashlib.sha256(advert.signed(terms)).digest()
        return replace(advert, signature=sign(digest, terms, self.identity))

    def _roster(
        self, state: ClientState, terms: Terms, roster: bytes, known: bool = True
    ) -> Roster:
        return read_roster(roster, terms, self._advert(state, terms), self.directory, known)

    def _delivery(self, seen: Roster, delivery: bytes) -> Delivery:
        terms, size = seen.terms, seen.sizes.body(Kind.DELIVERY)
        body = open_frame(delivery, Kind.DELIVERY, terms, self.number, size)
        head = members.num_bytes(len(terms.cohort))
        bits = bytes(body[:head])
        shared = members.from_bits(bits, terms.cohort, "a delivery")
        if self.number not in shared or not shared <= frozenset(seen.graph.clients):
            raise RefusedError("the delivery names others than those who can have shared secrets")
        found = read_places(body[head:], seen.neighbours, SEALED_BYTES, shared, "a delivery")
        return Delivery(shared_digest(seen.graph.digest, bits), shared, found)

    def _survivors(
        self, state: ClientState, seen: Roster, message: bytes
    ) -> tuple[bytes, frozenset[int]]:
        """As bits and as a set, once this client can agree to them."""
        terms, size = seen.terms, seen.sizes.body(Kind.SURVIVORS)
        bits = bytes(open_frame(message, Kind.SURVIVORS, terms, self.number, size))
        survived = members.from_bits(bits, terms.cohort, "the list of survivors")
        if self.number not in survived:
            raise RefusedError(f"client {self.number} is not in the list of survivors it was sent")
        if len(survived) < terms.least:
            raise RefusedError(
                f"{len(survived)} survivors are fewer than the {terms.least} below which nothing"
                " is revealed"
            )
        if not survived <= self._delivery(seen, state.delivery).shared:
            raise RefusedError("the list of survivors names clients who have shared no secrets")
        return bits, survived

    def _check_agreement(
        self, seen: Roster, digest: bytes, asked: Request, survived: frozenset[int]
    ) -> None:
        """At least as many neighbours as the threshold have signed the same survivors."""
        for other, signature in asked.signatures.items():
            signed = frame(Kind.AGREEMENT, other, seen.terms, digest)
            if other not in survived or not is_signed(
                signed, signature, seen.terms, self.directory[other]
            ):
                raise RefusedError(f"client {other} has not signed these survivors")
        if len(asked.signatures) < seen.graph.parameters.threshold:
            raise RefusedError(
                f"{len(asked.signatures)} neighbours have signed the same survivors, but"
                f" {seen.graph.parameters.threshold} must have"
            )

    def _check_pledges(self, seen: Roster, digest: bytes, asked: Request) -> None:
        """A survivor whose seed is asked for has masked with this client, as this one with it."""
        for other, pledge in asked.pledges.items():
            signed = frame(Kind.PLEDGE, other, seen.terms, digest)
            if not is_signed(signed, pledge, seen.terms, self.directory[other]):
                raise RefusedError(f"client {other} has not pledged to the masks of this round")

    def _shares(
        self, state: ClientState, seen: Roster, asked: Request, shared: Mapping[int, bytes]
    ) -> dict[int, bytes]:
        """One half of each share; those that cannot be opened are left out."""
        own = OwnKeys.derive(state.seed, seen.terms, self.number)
        found = {}
        for other in asked.seeds | asked.keys:
            share = keys.open_share(
                own.share, seen.adverts[other].share_key, shared[other], seen.terms,
                (other, self.number), seen.graph.digest,
            )  # fmt: skip
            if share is not None:
                first = 0 if other in asked.seeds else SECRET_BYTES
                found[other] = share[first : first + SECRET_BYTES]
        return found


def _check_request(asked: Request, survived: frozenset[int], shared: frozenset[int]) -> None:
    both = asked.seeds & asked.keys
    if both:
        raise RefusedError(
            f"the server asks for both secrets of client {min(both)}; it would see its vector"
        )
    if not asked.seeds <= survived or asked.keys & survived:
        raise RefusedError("the server asks for secrets that do not go with the survivors it named")
    if not asked.seeds | asked.keys <= shared:
        raise RefusedError("the server asks for secrets of clients who have not shared them")


def _check_input(
    terms: Terms, cells: UInt32[ndarray, " cells"], totals: UInt64[ndarray, " totals"]
) -> None:
    if cells.dtype != np.uint32 or cells.shape != (terms.cells,):
        raise UserError(
            f"cells are {cells.shape} of {cells.dtype}; the terms want {terms.cells} of uint32"
        )
    if totals.dtype != np.uint64 or totals.shape != (terms.totals,):
        raise UserError(
            f"totals are {totals.shape} of {totals.dtype}; the terms want {terms.totals} of uint64"
        )
    if terms.bits < 32 and cells.size and int(cells.max()) >> terms.bits:
        raise UserError(f"a cell is {int(cells.max())}; it must be below 2^{terms.bits}")
