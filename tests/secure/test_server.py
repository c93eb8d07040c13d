"""What the server does not believe of a client, and what a dishonest one can spoil."""

import hashlib

import pytest
from secure.forged import (
    EVERYONE,
    TERMS,
    at,
    seal,
    survivors,
)
from secure.rounds import DIRECTORY, Round, seed_of, terms_of

from fetchsgd.secure import RefusedError, Server, keys, members
from fetchsgd.secure.frames import HEADER_BYTES, SIGNATURE_BYTES, Kind, frame
from fetchsgd.secure.messages import Advert, read_advert
from fetchsgd.secure.sizes import ADVERT_BYTES


def test_what_the_server_refuses():
    server = Server(TERMS, DIRECTORY)
    found = Round(TERMS)
    sent = {n: found.answer(0, n, m) for n, m in server.invitations().items()}
    bodies = {n: message[HEADER_BYTES:-SIGNATURE_BYTES] for n, message in sent.items()}
    server.receive(sent[0])
    small = bytes(32)  # a point of small order
    other = terms_of(7, round=2)
    bad = {
        "client 0 has answered already": sent[0],
        "signature of client 1": seal(Kind.ADVERT, 1, TERMS, bodies[1], by=2),
        "a key that is there already": seal(Kind.ADVERT, 1, TERMS, bodies[0]),
        "no secret can be agreed on": seal(Kind.ADVERT, 1, TERMS, small + bodies[1][32:]),
        "another round": seal(Kind.ADVERT, 1, other, bodies[1]),
        "client 8 has no part": seal(Kind.ADVERT, 8, TERMS, bodies[1]),
        "advert was expected, and reveal": seal(Kind.REVEAL, 1, TERMS, bodies[1]),
        "instead of": sent[1] + b"\0",
        "not a message": b"x" + sent[1][1:],
        "version 2": sent[1][:4] + b"\2" + sent[1][5:],
        "no message of kind 77": sent[1][:5] + b"\x4d" + sent[1][6:],
        "at least 28 bytes": b"",
    }
    for sentence, message in bad.items():
        with pytest.raises(RefusedError, match=sentence):
            server.receive(message)
    assert server.answered == {0}
    assert server.receive(sent[1]) == 1


def test_answers_to_what_the_server_has_not_sent():
    """On its way down a roster or a list was changed into another that the client believes."""
    found = at(1)
    shares = found.answer(1, 0, found.messages[0])[HEADER_BYTES:-SIGNATURE_BYTES]
    with pytest.raises(RefusedError, match="client 0 has shared its secrets in another graph"):
        found.server.receive(seal(Kind.SHARES, 0, TERMS, bytes(32), shares[32:]))
    found = at(3)
    answer = found.answer(3, 0, survivors(found, 0, EVERYONE - {6}))
    with pytest.raises(RefusedError, match="client 0 was told of other survivors"):
        found.server.receive(answer)


def test_a_client_that_dropped_out_does_not_come_back():
    found = at(2, drops={6: 1})
    found.drops = {}
    late = found.answer(1, 6, found.sent[[s[:3] for s in found.sent].index((1, "down", 6))][3])
    with pytest.raises(RefusedError, match="masked was expected, and shares"):
        found.server.receive(late)
    bits = members.to_bits(EVERYONE, TERMS.cohort)
    delivery = frame(Kind.DELIVERY, 6, TERMS, bits, found.messages[0][HEADER_BYTES + 1 :])
    answer = found.answer(2, 6, delivery)
    with pytest.raises(RefusedError, match="client 6 has dropped out"):
        found.server.receive(answer)


@pytest.mark.parametrize("drops", [{}, {6: 2}], ids=["of a seed", "of a key"])
@pytest.mark.parametrize("liars", [{1}, {1, 2, 3, 4}], ids=["one", "too many"])
def test_wrong_shares_spoil_a_round_at_most_and_never_a_sum(drops, liars):
    """The secret of client 6 or of client 0, from neighbours who are not honest."""

    def lie(phase, number, message):
        if phase != 4 or number not in liars:
            return [message]
        body = bytearray(message[HEADER_BYTES:-SIGNATURE_BYTES])
        start = 1 + 5 * 32 if drops else 1
        body[start : start + 32] = hashlib.sha256(b"%d" % number).digest()
        return [seal(Kind.REVEAL, number, TERMS, bytes(body))]

    found = Round(TERMS, drops, up=lie).play()
    assert not found.refused
    assert found.check() == (liars == {1})
    if liars != {1}:
        assert f"client {6 if drops else 0}'s secret do not give" in str(found.failure)


def test_shares_that_cannot_be_opened_are_left_out():
    """Client 1 encrypts nonsense to two others: the rest of its neighbours are enough."""

    def garble(phase, number, message):
        if (phase, number) != (1, 1):
            return [message]
        body = bytearray(message[HEADER_BYTES:-SIGNATURE_BYTES])
        body[32] ^= 1
        body[32 + 80] ^= 1
        return [seal(Kind.SHARES, 1, TERMS, bytes(body))]

    for drops in ({}, {1: 2}):
        found = Round(TERMS, drops, up=garble).play()
        assert not found.refused
        assert found.check()


def test_a_client_that_masks_with_others_than_it_was_told():
    """Its masks would not cancel."""

    def less(phase, number, message):
        if (phase, number) != (2, 0):
            return [message]
        body = bytearray(message[HEADER_BYTES:])
        body[0] ^= 2  # client 1 has not shared its secrets
        body[1 : 1 + 80] = bytes(80)
        return [message[:HEADER_BYTES] + bytes(body)]

    found = Round(TERMS, down=less).play()
    assert "has masked with others" in str(found.refused[0])
    assert found.check()
    assert 0 not in found.server.result.clients


def test_an_advert_is_its_bytes():
    found = at(1)
    message = found.sent[1][3]
    body = message[HEADER_BYTES : HEADER_BYTES + ADVERT_BYTES]
    advert = read_advert(0, body, message[-SIGNATURE_BYTES:])
    assert isinstance(advert, Advert)
    assert advert.message(TERMS) == message
    seed = keys.OwnKeys.derive(seed_of(0), TERMS, 0).self_mask
    wanted = b"fetchsgd secure commitment" + TERMS.digest + bytes(4) + seed.reveal()
    assert advert.commitment == hashlib.sha256(wanted).digest()
