"""How small the groups are that a dishonest server learns of, whatever it tells clients.

A model of the rules by which clients reveal shares, without cryptography: the server tells arcs of
the ring different lists of survivors, colluding clients sign all of them and give both their
shares. docs/privacy.md says that nobody's two secrets come together, and that what is learnt are
sums of at least `group` honest clients.
"""

import hashlib
import random

import pytest

from fetchsgd.errors import UserError
from fetchsgd.secure.graph import Graph
from fetchsgd.secure.parameters import search

TRIALS = 600


def told(ring, colluding, draw):
    """The list of survivors that each honest client hears of: those of its arc, more or less."""
    count, stories = len(ring), {}
    cuts = sorted(draw.sample(range(count), draw.choice([1, 2, 3])))
    for first, last in zip(cuts, [*cuts[1:], cuts[0] + count], strict=True):
        wider = draw.choice([0, 0, 1, 2])
        listed = frozenset(ring[place % count] for place in range(first - wider, last + wider))
        listed |= frozenset(colluding if draw.random() < 0.5 else ())
        for place in range(first, last):
            client = ring[place % count]
            if client in listed - set(colluding) and draw.random() < 0.97:
                stories[client] = listed
    return stories


def known(around, colluding, threshold, stories):
    """Whose seeds and whose keys the server can restore."""

    def signed(client, listed):
        return client in listed and (client in colluding or stories.get(client) == listed)

    reveals = {
        client: listed
        for client, listed in stories.items()
        if sum(signed(other, listed) for other in around[client]) >= threshold
    }
    found = set(), set()
    for client, neighbours in around.items():
        seeds = sum(client in reveals.get(other, ()) for other in neighbours)
        keys = sum(other in reveals and client not in reveals[other] for other in neighbours)
        bought = len(colluding.intersection(neighbours))
        for which, shares in zip(found, (seeds, keys), strict=True):
            if client not in colluding and shares + bought >= threshold:
                which.add(client)
    return found


def groups(around, colluding, seeds, keys):
    """Honest clients tied by masks that the server does not know, all of whose seeds it does."""
    left = set(around) - colluding
    while left:
        group, waiting = set(), [left.pop()]
        while waiting:
            client = waiting.pop()
            group.add(client)
            tied = left.intersection(around[client]) - keys if client not in keys else set()
            left -= tied
            waiting += tied
        if group <= seeds:
            yield group


@pytest.mark.parametrize("colluding", [0, 1, 2])
def test_whatever_clients_are_told(colluding):
    draw, learnt = random.Random(colluding), 0
    for trial in range(TRIALS // 3):
        clients, dropping = draw.choice([10, 12, 16, 30]), draw.choice([0, 1, 2, 3])
        try:
            found = search(clients, clients, colluding, clients - dropping, 40, 20)
        except UserError:
            continue
        graph = Graph(tuple(range(clients)), found, hashlib.sha256(b"%d" % trial).digest())
        around = {client: graph.neighbours(client) for client in graph.ring}
        bad = set(draw.sample(range(clients), colluding))
        stories = told(graph.ring, bad, draw)
        seeds, keys = known(around, bad, found.threshold, stories)
        assert not seeds & keys
        for group in groups(around, bad, seeds, keys):
            learnt += 1
            assert len(group) >= found.degree - found.threshold + 2
    assert learnt > TRIALS / 30  # else nothing has been tried
