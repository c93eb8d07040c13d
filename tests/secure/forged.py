"""Messages that nobody should believe, and rounds stopped where they would be sent."""

import hashlib
from dataclasses import replace

import pytest
from secure.rounds import Round, identity, terms_of

from fetchsgd.secure import RefusedError, members
from fetchsgd.secure.frames import Kind, frame, sign
from fetchsgd.secure.graph import Merkle
from fetchsgd.secure.messages import Request, write_request
from fetchsgd.secure.rosters import RosterWriter, make_graph

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


def survivors(found, number, who):
    bits = members.to_bits(who, found.terms.cohort)
    return frame(Kind.SURVIVORS, number, found.terms, bits)


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


def seal(kind, number, terms, *body, by=None):
    message = frame(kind, number, terms, *body)
    digest = hashlib.sha256(message).digest()
    return message + sign(digest, terms, identity(number if by is None else by))
