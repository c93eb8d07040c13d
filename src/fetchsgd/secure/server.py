"""The server's side: messages in, one by one, and at the end of each phase messages out.

    server = Server(terms, directory)
    messages = server.invitations()
    while server.phase < Phase.DONE:
        ...  # send them; give what comes back, until a deadline, to server.receive
        messages = server.close()  # TooFewError drops the round
    server.result

What a client sends too late, twice, or wrongly raises RefusedError and changes nothing: to the
round such a client has dropped out. Masked vectors are added up as they come, so memory does not
grow with their number. Nothing that the server holds before the last phase says more than that sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from jaxtyping import UInt32, UInt64
from numpy import ndarray

from fetchsgd.errors import UserError
from fetchsgd.secure import keys, members, planes
from fetchsgd.secure.errors import RefusedError, TooFewError
from fetchsgd.secure.frames import frame, is_signed, open_signed
from fetchsgd.secure.graph import HASH_BYTES, Graph, shared_digest, survivors_digest
from fetchsgd.secure.kinds import SEALED_BYTES, SIGNATURE_BYTES, Kind
from fetchsgd.secure.messages import (
    Advert,
    Request,
    read_advert,
    read_slots,
    write_invitation,
    write_places,
    write_request,
)
from fetchsgd.secure.rosters import sizes_of, write_rosters
from fetchsgd.secure.secret import SECRET_BYTES
from fetchsgd.secure.sizes import ADVERT_BYTES
from fetchsgd.secure.terms import Terms
from fetchsgd.secure.unmasking import Unmasking


class Phase(IntEnum):
    """Which answer of the clients the server waits for."""

    ADVERTISE = 0
    SHARE = 1
    MASK = 2
    AGREE = 3
    REVEAL = 4
    DONE = 5
    FAILED = 6


_ANSWERS = (Kind.ADVERT, Kind.SHARES, Kind.MASKED, Kind.AGREEMENT, Kind.REVEAL)


@dataclass(frozen=True)
class Sum:
    """The round's result, and nothing else: what the survivors' vectors add up to."""

    cells: UInt32[ndarray, " cells"]  # modulo 2^bits
    totals: UInt64[ndarray, " totals"]  # modulo 2^64
    clients: tuple[int, ...]


class Server:
    """One attempt at a round, from its terms to the sum."""

    graph: Graph  # once it is dealt
    _shared: bytes  # the digest of who has shared secrets
    _digest: bytes  # the digest of who has survived

    def __init__(self, terms: Terms, directory: Mapping[int, bytes]) -> None:
        self.terms = terms
        self.directory = directory
        self.phase = Phase.ADVERTISE
        self.result: Sum | None = None
        self._adverts: dict[int, Advert] = {}
        self._keys: set[bytes] = set()
        self._sealed: dict[int, dict[int, bytes]] = {}  # by sender, then by receiver
        self._words = np.zeros(planes.num_words(terms.cells, terms.bits), dtype=np.uint64)
        self._totals = np.zeros(terms.totals, dtype=np.uint64)
        self._pledges: dict[int, bytes] = {}  # of those whose vectors are in the sum
        self._signatures: dict[int, bytes] = {}
        self._revealed: dict[int, dict[int, bytes]] = {}  # by holder, then by owner

    def invitations(self) -> dict[int, bytes]:
        return {number: write_invitation(self.terms, number) for number in self.terms.cohort}

    @property
    def answered(self) -> frozenset[int]:
        """Whose answer of this phase is there."""
        found = (
            self._adverts, self._sealed, self._pledges, self._signatures, self._revealed, (), ()
        )  # fmt: skip
        return frozenset(found[self.phase])

    @property
    def expected(self) -> frozenset[int]:
        """Whose answer may come in this phase: those who gave the one before."""
        before = (
            self.terms.cohort, self._adverts, self._sealed, self._pledges, self._signatures,
            (), (),
        )  # fmt: skip
        return frozenset(before[self.phase])

    def receive(self, message: bytes) -> int:
        """Take a client's answer, and say whose it was."""
        if self.phase >= Phase.DONE:
            raise RefusedError("the round is over")
        kind = _ANSWERS[self.phase]
        client, body = open_signed(message, kind, self.terms, self.directory, self._size(kind))
        if client in self.answered:
            raise RefusedError(f"client {client} has answered already")
        if client not in self.expected:
            raise RefusedError(f"client {client} has dropped out of this round before")
        take = (
            self._take_advert, self._take_shares, self._take_masked, self._take_agreement,
            self._take_reveal,
        )[self.phase]  # fmt: skip
        take(client, body, message[-SIGNATURE_BYTES:])
        return client

    def close(self) -> dict[int, bytes]:
        """End the phase: the messages of the next one, or none after the last."""
        end = (
            self._deal, self._deliver, self._name_survivors, self._request, self._unmask
        )  # fmt: skip
        if self.phase >= Phase.DONE:
            raise RefusedError("the round is over")
        try:
            self._check_number()
            messages = end[self.phase]()
        except TooFewError:
            self.phase = Phase.FAILED
            self._sealed.clear()
            self._revealed.clear()
            self._words[:] = 0
            raise
        self.phase = Phase(self.phase + 1)
        return messages

    def _size(self, kind: Kind) -> int:
        if kind is Kind.ADVERT:
            return ADVERT_BYTES
        return sizes_of(self.terms, self.graph).body(kind)

    def _check_number(self) -> None:
        """Up to the masked vectors, all that is missing is missing from the sum."""
        if self.phase <= Phase.MASK and len(self.answered) < self.terms.least:
            raise TooFewError(
                f"{len(self.answered)} of {len(self.terms.cohort)} clients have answered in the"
                f" phase {self.phase.name.lower()}, but at least {self.terms.least} must; the round"
                " is dropped"
            )

    def _take_advert(self, client: int, body: memoryview, signature: bytes) -> None:
        advert = read_advert(client, body, signature)
        fresh = {advert.mask_key, advert.share_key}
        if fresh & self._keys or len(fresh) < 2:
            raise RefusedError(f"client {client} has sent a key that is there already")
        if not all(map(keys.is_usable, fresh)):
            raise RefusedError(
                f"client {client} has sent a key with which no secret can be agreed on"
            )
        self._keys |= fresh
        self._adverts[client] = advert

    def _deal(self) -> dict[int, bytes]:
        try:
            self.graph, rosters = write_rosters(self.terms, self._adverts)
        except UserError as error:
            raise TooFewError(f"the round is dropped: {error}") from error
        return {number: rosters.message(number) for number in self.graph.clients}

    def _take_shares(self, client: int, body: memoryview, _: bytes) -> None:
        if bytes(body[:HASH_BYTES]) != self.graph.digest:
            raise RefusedError(f"client {client} has shared its secrets in another graph")
        size = SEALED_BYTES
        self._sealed[client] = {
            other: bytes(body[HASH_BYTES + place * size : HASH_BYTES + (place + 1) * size])
            for place, other in enumerate(self.graph.neighbours(client))
        }

    def _deliver(self) -> dict[int, bytes]:
        bits = members.to_bits(self._sealed.keys(), self.terms.cohort)
        self._shared = shared_digest(self.graph.digest, bits)
        messages = {}
        for number in self._sealed:
            around = self.graph.neighbours(number)
            found = {i: self._sealed[i][number] for i in around if i in self._sealed}
            places = write_places(found, around, SEALED_BYTES)
            messages[number] = frame(Kind.DELIVERY, number, self.terms, bits, places)
        return messages

    def _take_masked(self, client: int, body: memoryview, _: bytes) -> None:
        pledge = bytes(body[:SIGNATURE_BYTES])
        pledged = frame(Kind.PLEDGE, client, self.terms, self._shared)
        if not is_signed(pledged, pledge, self.terms, self.directory[client]):
            raise RefusedError(f"client {client} has masked with others than it should have")
        start = SIGNATURE_BYTES + 8 * self.terms.totals
        self._totals += np.frombuffer(body[SIGNATURE_BYTES:start], "<u8")
        # A copy where the words are not aligned, or the machine is big-endian.
        words = np.frombuffer(body[start:], "<u8").astype(np.uint64)
        planes.add(self._words, words, self.terms.bits, negative=False)
        self._pledges[client] = pledge

    def _name_survivors(self) -> dict[int, bytes]:
        self._sealed = {number: {} for number in self._sealed}  # delivered, and needed no more
        bits = members.to_bits(self._pledges, self.terms.cohort)
        self._digest = survivors_digest(self.graph.digest, bits)
        return {number: frame(Kind.SURVIVORS, number, self.terms, bits) for number in self._pledges}

    def _take_agreement(self, client: int, body: memoryview, signature: bytes) -> None:
        if bytes(body) != self._digest:
            raise RefusedError(f"client {client} was told of other survivors")
        self._signatures[client] = signature

    def _request(self) -> dict[int, bytes]:
        self._check_holders(self._signatures, "agreed on who survived")
        messages = {}
        for number in self._signatures:
            around = self.graph.neighbours(number)
            shared = [other for other in around if other in self._sealed]
            request = Request(
                {i: self._pledges[i] for i in shared if i in self._pledges},
                frozenset(other for other in shared if other not in self._pledges),
                {i: self._signatures[i] for i in around if i in self._signatures},
            )
            messages[number] = write_request(request, self.terms, number, around)
        return messages

    def _take_reveal(self, client: int, body: memoryview, _: bytes) -> None:
        around = self.graph.neighbours(client)
        found = read_slots(body, around, SECRET_BYTES, "a reveal")
        if not found.keys() <= self._sealed.keys():
            raise RefusedError(f"client {client} reveals shares that nobody has given it")
        self._revealed[client] = found

    def _check_holders(self, present: Mapping[int, object], done: str) -> None:
        """Everyone who has shared secrets has as many neighbours left as the threshold."""
        threshold = self.graph.parameters.threshold
        for number in self._sealed:
            count = sum(other in present for other in self.graph.neighbours(number))
            if count < threshold:
                raise TooFewError(
                    f"{count} neighbours of client {number} have {done}, but at least {threshold}"
                    " must; the round is dropped"
                )

    def _unmask(self) -> dict[int, bytes]:
        self._check_holders(self._revealed, "revealed their shares")
        unmasking = Unmasking(
            self.terms, self.graph, self._adverts, frozenset(self._sealed),
            frozenset(self._pledges), self._revealed,
        )  # fmt: skip
        unmasking.apply(self._totals, self._words)
        self.result = Sum(
            planes.unpack(self._words, self.terms.cells, self.terms.bits),
            self._totals,
            tuple(sorted(self._pledges)),
        )
        self._revealed.clear()
        return {}
