"""What a client or the server must not be talked into, each with the sentence that refuses it."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from secure.rounds import DIRECTORY, Round, identity, inputs_of, seed_of, terms_of

from fetchsgd.errors import UserError
from fetchsgd.secure import Client, ClientState, Policy, RefusedError, Server, keys, members
from fetchsgd.secure.frames import HEADER_BYTES, SIGNATURE_BYTES, Kind, frame, sign
from fetchsgd.secure.graph import Merkle
from fetchsgd.secure.messages import Advert, Request, read_advert, write_invitation, write_request
from fetchsgd.secure.rosters import RosterWriter, make_graph
from fetchsgd.secure.sizes import ADVERT_BYTES

TERMS = terms_of(7, colluding=1 / 7, dropping=0.3)
SPARSE = terms_of(40, colluding=0.05, dropping=0.1)
EVERYONE = frozenset(range(7))


def at(phase, terms=TERMS, drops=None):
    """A round whose messages of this phase are on their way to the clients."""
    found = Round(terms, drops or {}).play(until=phase)
    assert found.failure is None
    return found


def refused(found, phase, number, message, sentence):
    """The client does not answer, and its state is as it was: the true message still works."""
    before = dict(found.states)
    with pytest.raises(RefusedError, match=sentence):
        found.answer(phase, number, message)
    assert found.states == before


def adverts_of(found):
    return dict(found.server._adverts)


def roster_of(terms, adverts, number, root=None):
    clients = tuple(sorted(adverts))
    tree = Merkle([adverts[n].message(terms) for n in clients])
    if root is not None:
        tree.levels[-1] = [root]
    graph = make_graph(terms, clients, tree.root)
    return RosterWriter(terms, graph, tree, adverts).message(number)


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


def survivors(found, number, who):
    bits = members.to_bits(who, found.terms.cohort)
    return frame(Kind.SURVIVORS, number, found.terms, bits)


def test_lists_of_survivors():
    found = at(3, drops={6: 1})
    bad = {
        "client 0 is not in the list": EVERYONE - {0, 6},
        "4 survivors are fewer than the 5": frozenset(range(4)),
        "who have shared no secrets": EVERYONE,
    }
    for sentence, who in bad.items():
        refused(found, 3, 0, survivors(found, 0, who), sentence)


def test_a_second_list_of_survivors():
    found = at(3)
    before = found.states[0]
    found.answer(3, 0, found.messages[0])
    other = survivors(found, 0, EVERYONE - {6})
    refused(found, 3, 0, other, "survivors has come already")
    found.states[0] = before
    refused(found, 3, 0, other, "nothing is signed twice")


def asking(found, number, **changes):
    around = found.server.graph.neighbours(number)
    server = found.server
    signed = {n: server._signatures[n] for n in around if n in server._signatures}
    survived = {n: server._pledges[n] for n in around if n in server._pledges}
    dropped = frozenset(server._sealed) - survived.keys() - {number}
    if "seeds" in changes:
        changes["pledges"] = {n: server._pledges.get(n, bytes(64)) for n in changes.pop("seeds")}
    request = replace(Request(survived, dropped, signed), **changes)
    return write_request(request, found.terms, number, around)


def test_both_secrets_of_a_client():
    found = at(4)
    seeds = EVERYONE - {0}
    refused(found, 4, 0, asking(found, 0, keys=frozenset({3})), "both secrets of client 3")
    swapped = asking(found, 0, seeds=seeds - {3}, keys=frozenset({3}))
    refused(found, 4, 0, swapped, "do not go with the survivors")
    assert found.answer(4, 0, found.messages[0])
    with pytest.raises(RefusedError, match="request has come already"):
        found.answer(4, 0, found.messages[0])


def test_secrets_of_a_client_that_dropped_out():
    found = at(4, drops={6: 2})
    seeds = EVERYONE - {0, 6}
    wrong = asking(found, 0, seeds=seeds | {6}, keys=frozenset())
    refused(found, 4, 0, wrong, "do not go with the survivors")
    both = asking(found, 0, seeds=seeds | {6}, keys=frozenset({6}))
    refused(found, 4, 0, both, "both secrets of client 6")
    assert asking(found, 0) == found.messages[0]


def test_secrets_of_a_client_that_shared_none():
    found = at(4, drops={6: 1})
    refused(found, 4, 0, asking(found, 0, keys=frozenset({6})), "who have not shared them")


def test_signatures_under_other_survivors():
    """The server tells some that client 6 survived and others that it did not."""
    found = at(3)
    without = EVERYONE - {6}
    for number in range(7):
        told = EVERYONE if number < 3 else without
        if number in told:
            answer = found.answer(3, number, survivors(found, number, told))
            found.server._signatures[number] = answer[-SIGNATURE_BYTES:]
    for number, told in ((0, EVERYONE), (4, without)):
        seeds = told - {number}
        request = asking(found, number, seeds=seeds, keys=EVERYONE - told)
        refused(found, 4, number, request, "has not signed these survivors")
        like_minded = {1, 2} if number == 0 else {3, 5}
        signed = {n: found.server._signatures[n] for n in like_minded}
        request = asking(found, number, seeds=seeds, keys=EVERYONE - told, signatures=signed)
        refused(found, 4, number, request, "2 neighbours have signed the same survivors, but")


def test_a_survivor_that_has_masked_with_others():
    """The server told client 3 that clients 1 and 2 had not shared their secrets.

    Client 3 has no masks in common with them; so they do not help to take its self-mask away.
    """
    found = at(2)
    without = EVERYONE - {1, 2}
    body = bytearray(found.messages[3][HEADER_BYTES:])
    body[0] = members.to_bits(without, TERMS.cohort)[0]
    body[1 + 80 : 1 + 3 * 80] = bytes(160)  # neighbours of client 3 are 0, 1, 2, 4, 5, 6
    lie = frame(Kind.DELIVERY, 3, TERMS, bytes(body))
    pledge = found.answer(2, 3, lie)[HEADER_BYTES : HEADER_BYTES + SIGNATURE_BYTES]
    other = at(4)
    pledges = {n: other.server._pledges[n] for n in range(7) if n != 1}
    refused(
        other, 4, 1, asking(other, 1, pledges={**pledges, 3: pledge}), "client 3 has not pledged"
    )
    assert asking(other, 1, pledges=pledges) == other.messages[1]


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


def test_too_few_signatures():
    found = at(4)
    threshold = found.server.graph.parameters.threshold
    signed = {n: found.server._signatures[n] for n in range(1, threshold)}
    refused(found, 4, 0, asking(found, 0, signatures=signed), f"{threshold - 1} neighbours have")


def seal(kind, number, terms, *body, by=None):
    message = frame(kind, number, terms, *body)
    digest = hashlib.sha256(message).digest()
    return message + sign(digest, terms, identity(number if by is None else by))


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
def test_a_wrong_share_spoils_the_round_and_not_the_sum(drops):
    """Client 1 is not honest."""

    def lie(phase, number, message):
        if (phase, number) != (4, 1):
            return [message]
        body = bytearray(message[HEADER_BYTES:-SIGNATURE_BYTES])
        body[1 + 5 * 32 if drops else 1] ^= 1  # of client 6, or of client 0
        return [seal(Kind.REVEAL, 1, TERMS, bytes(body))]

    found = Round(TERMS, drops, up=lie).play()
    assert not found.refused
    assert not found.check()
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
