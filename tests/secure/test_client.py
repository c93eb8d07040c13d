"""What a client refuses, up to its masked vector, each with the sentence that says so."""

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from secure.forged import (
    EVERYONE,
    SPARSE,
    TERMS,
    adverts_of,
    at,
    refused,
    roster_of,
)
from secure.rounds import DIRECTORY, identity, inputs_of, seed_of, terms_of

from fetchsgd.errors import UserError
from fetchsgd.secure import Client, ClientState, Policy, RefusedError, members
from fetchsgd.secure.frames import HEADER_BYTES, Kind, frame
from fetchsgd.secure.graph import Merkle
from fetchsgd.secure.messages import write_invitation
from fetchsgd.secure.rosters import make_graph


@pytest.mark.parametrize("phase", range(5))
def test_random_bodies(phase):
    """Under the right header: refused by the client, and by the server as well."""
    found = at(phase)
    messages = found.messages if phase else found.server.invitations()
    rng = np.random.default_rng(phase)
    answer = found.answer(phase, 1, messages[1])
    # A list of survivors is one byte, and some of these are lists that are allowed.
    right = len(messages[0]) - HEADER_BYTES if phase != 3 else 0
    for size in [*rng.integers(2, 300, 30), *[right] * 30]:
        with pytest.raises(RefusedError):
            found.answer(phase, 0, messages[0][:HEADER_BYTES] + rng.bytes(size))
    for size in [*rng.integers(0, 300, 30), *[len(answer) - HEADER_BYTES] * 30]:
        with pytest.raises(RefusedError):
            found.server.receive(answer[:HEADER_BYTES] + rng.bytes(size))
    assert found.server.receive(answer) == 1


def test_invitations():
    client = Client(3, identity(3), DIRECTORY, policy=Policy(5, 0.1, 0.4, 40))
    client.join(write_invitation(TERMS, 3))
    bad = {
        "invited to a round of which it is no part": (terms_of([1, 2, 4, 5, 6]), 3),
        "expected, and invitation of client 4": (TERMS, 4),
        "a cohort of 4 is smaller than 5": (terms_of(4, dropping=0.25), 3),
        "30 bits of security are fewer": (replace(TERMS, security_bits=30), 3),
        "allow for 0 colluding": (terms_of(10, colluding=0.0, dropping=0.3), 3),
        "more dropping out": (replace(TERMS, least=3), 3),
    }
    for sentence, (terms, number) in bad.items():
        with pytest.raises(RefusedError, match=sentence):
            client.join(write_invitation(terms, number))


@pytest.mark.parametrize("size", [0, 10, HEADER_BYTES, HEADER_BYTES + 47, HEADER_BYTES + 50])
def test_invitations_that_are_cut_off(size):
    with pytest.raises(RefusedError):
        Client(3, identity(3), DIRECTORY).join(write_invitation(TERMS, 3)[:size])


@pytest.mark.parametrize("terms", [TERMS, SPARSE], ids=["complete", "sparse"])
def test_keys_that_their_owner_has_not_signed(terms):
    """A server that puts its own key in the place of a client's could read shares meant for it."""
    found = at(1, terms)
    own = X25519PrivateKey.generate().public_key().public_bytes_raw()
    tried = 0
    for number in terms.cohort[1:]:
        adverts = adverts_of(found)
        adverts[number] = replace(adverts[number], share_key=own)
        # Another advert is another graph; there the client may be shown to client 0, or not.
        tree = Merkle([adverts[n].message(terms) for n in terms.cohort])
        if number in make_graph(terms, terms.cohort, tree.root).neighbours(0):
            tried += 1
            changed = roster_of(terms, adverts, 0)
            refused(found, 1, 0, changed, f"advert of client {number} is not signed by it")
    assert tried >= 3


def test_keys_that_are_swapped():
    found = at(1)
    adverts = adverts_of(found)
    swapped = replace(adverts[1], mask_key=adverts[1].share_key, share_key=adverts[1].mask_key)
    refused(found, 1, 0, roster_of(TERMS, {**adverts, 1: swapped}, 0), "not signed by it")
    two = {**adverts, 1: replace(adverts[2], client=1), 2: replace(adverts[1], client=2)}
    refused(found, 1, 0, roster_of(TERMS, two, 0), "not signed by it")
    same = {**adverts, 1: replace(adverts[2], client=1)}
    refused(found, 1, 0, roster_of(TERMS, same, 0), "two keys of a round are the same")


def test_adverts_of_another_round():
    found, other = at(1), at(1, terms_of(7, colluding=1 / 7, dropping=0.3, round=2))
    mixed = {**adverts_of(found), 4: adverts_of(other)[4]}
    refused(found, 1, 0, roster_of(TERMS, mixed, 0), "advert of client 4 is not signed")
    refused(found, 1, 0, other.messages[0], "another round")


def test_a_graph_that_the_server_has_chosen():
    """The order on the ring follows from the root, and the root from the adverts."""
    found = at(1, SPARSE)
    chosen = roster_of(SPARSE, adverts_of(found), 0, root=bytes(32))
    refused(found, 1, 0, chosen, "not those from which its graph follows")
    refused(found, 1, 0, found.messages[1], "roster is for client 1")
    assert found.answer(1, 0, found.messages[0])


def test_rosters_that_leave_out_too_many():
    found = at(1)
    adverts = adverts_of(found)
    few = {n: adverts[n] for n in range(4)}
    with pytest.raises(UserError, match="at least 5"):
        roster_of(TERMS, few, 0)
    bits = members.to_bits(few.keys(), TERMS.cohort)
    message = frame(Kind.ROSTER, 0, TERMS, bits, bytes(2000))
    refused(found, 1, 0, message, "4 of 7 clients are there, but at least 5")
    without = {n: adverts[n] for n in range(1, 7)}
    bits = members.to_bits(without.keys(), TERMS.cohort)
    refused(found, 1, 0, frame(Kind.ROSTER, 0, TERMS, bits, bytes(2000)), "leaves out client 0")


def test_messages_out_of_order():
    found = at(1)
    refused(found, 3, 0, b"", "survivors has come before roster")
    found.answer(1, 0, found.messages[0])
    with pytest.raises(RefusedError, match="roster has come already"):
        found.answer(1, 0, found.messages[0])


def test_an_input_is_masked_once():
    """A state that was kept from before does not help: two vectors under one mask would differ by
    what the server wants to know."""
    found = at(2)
    before = found.states[0]
    first = found.answer(2, 0, found.messages[0])
    with pytest.raises(RefusedError, match="delivery has come already"):
        found.answer(2, 0, found.messages[0])
    found.states[0] = before
    assert found.answer(2, 0, found.messages[0]) == first  # the same again says nothing new
    found.states[0] = before
    found.inputs[0] = inputs_of(TERMS, seed=1)[0]
    refused(found, 2, 0, found.messages[0], "nothing is signed twice")


def test_a_client_does_not_begin_a_round_again_with_other_keys():
    found = at(1)
    client = found.clients[0]
    with pytest.raises(RefusedError, match="nothing is signed twice"):
        client.join(write_invitation(TERMS, 0), seed_of(0, salt=1))
    client.join(write_invitation(replace(TERMS, attempt=1), 0), seed_of(0, salt=1))
    with pytest.raises(RefusedError, match="rounds only go up"):
        client.join(write_invitation(TERMS, 0), seed_of(0))


def test_deliveries():
    found = at(2, drops={6: 0})
    body = found.messages[0][HEADER_BYTES:]
    for who in (EVERYONE, EVERYONE - {0, 6}):
        bits = members.to_bits(who, TERMS.cohort)
        message = frame(Kind.DELIVERY, 0, TERMS, bits, body[1:])
        refused(found, 2, 0, message, "others than those who can have shared")
    bits = members.to_bits(frozenset({0, 1, 2}), TERMS.cohort)
    message = frame(Kind.DELIVERY, 0, TERMS, bits, body[1:])
    refused(found, 2, 0, message, "has something of client 3, whom it leaves out")
    message = frame(Kind.DELIVERY, 0, TERMS, bits, body[1:161], bytes(len(body) - 161))
    refused(found, 2, 0, message, "only 2 of the neighbours have shared")


def test_inputs_that_do_not_fit():
    found = at(2)
    cells, totals = found.inputs[0]
    bad = {
        "cells are \\(69,\\)": (cells[:69], totals),
        "of int64": (cells.astype(np.int64), totals),
        "totals are": (cells, totals[:1]),
        "below 2\\^8": (cells + np.uint32(256), totals),
    }
    for sentence, given in bad.items():
        found.inputs[0] = given
        with pytest.raises(UserError, match=sentence):
            found.answer(2, 0, found.messages[0])


def test_states_that_are_damaged():
    state = at(2).states[0]
    data = state.to_bytes()
    assert ClientState.from_bytes(data) == state
    for damaged in (data[:10], data[:-1], data + b"\0"):
        with pytest.raises(ValueError, match="state of a client"):
            ClientState.from_bytes(damaged)
