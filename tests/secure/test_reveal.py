"""What a client does not reveal, whatever the server tells it and others."""

import pytest
from secure.forged import EVERYONE, TERMS, asking, at, refused, survivors

from fetchsgd.secure import RefusedError, members
from fetchsgd.secure.frames import HEADER_BYTES, SIGNATURE_BYTES, Kind, frame


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


def test_too_few_signatures():
    found = at(4)
    threshold = found.server.graph.parameters.threshold
    signed = {n: found.server._signatures[n] for n in range(1, threshold)}
    refused(found, 4, 0, asking(found, 0, signatures=signed), f"{threshold - 1} neighbours have")
