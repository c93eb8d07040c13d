"""Degree and threshold: exact tails, and graphs that were really drawn."""

import hashlib
import math

import numpy as np
import pytest
from scipy.stats import hypergeom

from fetchsgd.errors import UserError
from fetchsgd.secure import parameters, risks
from fetchsgd.secure.graph import Graph
from fetchsgd.secure.parameters import ALL_OF, Parameters, log_tail

SETTINGS = [
    (clients, colluding, dropping)
    for clients in (10, 40, 100, 1000, 10_000)
    for colluding, dropping in ((0.0, 0.05), (0.05, 0.05), (0.1, 0.1), (0.2, 0.1))
]


@pytest.mark.parametrize("drawn", [6, 40, 200])
@pytest.mark.parametrize("marked", [0, 3, 90, 250])
def test_tails_are_hypergeometric(drawn, marked):
    for least in range(drawn + 2):
        wanted = hypergeom.sf(least - 1, 999, marked, drawn)
        assert math.isclose(2 ** log_tail(999, marked, drawn, least), wanted, rel_tol=1e-6)


@pytest.mark.parametrize(("clients", "colluding", "dropping"), SETTINGS)
def test_what_was_asked_for_holds(clients, colluding, dropping):
    found = parameters(clients, colluding, dropping, 40, 20)
    risk = risks(found)
    assert np.logaddexp2(risk.exposed, risk.divided) <= -40
    assert risk.unfinished <= -20
    assert found.degree / 2 < found.threshold <= found.degree < clients
    assert found.least == clients - int(dropping * clients)
    assert found.degree % 2 == 0 or found.complete


@pytest.mark.parametrize(("clients", "colluding", "dropping"), SETTINGS)
def test_no_smaller_degree_would_do_where_not_all_are_neighbours(clients, colluding, dropping):
    found = parameters(clients, colluding, dropping, 40, 20)
    if clients <= ALL_OF:
        assert found.complete
        return
    degree = found.degree - 2 if found.degree % 2 == 0 else found.degree - 1
    for threshold in range(degree // 2 + 1, degree + 1):
        risk = risks(Parameters(clients, degree, threshold, found.least, found.colluding))
        safe = max(risk.exposed, risk.divided) <= -41
        assert not (safe and risk.unfinished <= -20)


def test_the_degree_grows_like_a_logarithm():
    """Each tenfold adds about as much."""
    degrees = [parameters(10**i, 0.05, 0.05).degree for i in (3, 4, 5, 6)]
    steps = np.diff(degrees)
    assert degrees == sorted(degrees)
    assert steps.max() <= 12


def test_risks_of_graphs_that_were_drawn():
    """Frequencies in 1,500 graphs stay below the bounds, which are too high by a factor at most.

    Clients 0, 1, ... collude and the last ones drop out: the order on the ring knows nothing of it.
    Each frequency is allowed four standard deviations: a false alarm in 30,000 for each.
    """
    found = Parameters(clients=40, degree=10, threshold=7, least=36, colluding=6)
    colluding, dropping = set(range(6)), set(range(36, 40))
    happened = np.zeros(3)
    draws = 1500
    for draw in range(draws):
        graph = Graph(tuple(range(40)), found, hashlib.sha256(b"%d" % draw).digest())
        around = {number: set(graph.neighbours(number)) for number in range(40)}
        exposed = any(len(around[i] & colluding) >= 4 for i in range(6, 40))
        bad = [number in colluding | dropping for number in graph.ring]
        divided = any(all(bad[(at + i) % 40] for i in range(5)) for at in range(40))
        unfinished = any(len(around[i] - dropping) < 7 for i in range(40))
        happened += (exposed, divided, unfinished)
    risk = risks(found)
    bounds = [2**value for value in (risk.exposed, risk.divided, risk.unfinished)]
    for count, bound in zip(happened, bounds, strict=True):
        assert count / draws <= bound + 4 * math.sqrt(bound / draws)
        assert bound == 1 or count / draws >= bound / 10


def test_a_ring_that_is_not_divided_is_connected():
    """Any honest survivors between which no 5 in a row are missing are one piece."""
    rng = np.random.default_rng(0)
    found = Parameters(clients=30, degree=10, threshold=6, least=15, colluding=0)
    pieces = []
    for _ in range(200):
        graph = Graph(tuple(range(30)), found, rng.bytes(32))
        left = set(range(30)) - set(rng.permutation(30)[:15].tolist())
        gone = [number not in left for number in graph.ring]
        divided = any(all(gone[(at + i) % 30] for i in range(5)) for at in range(30))
        reached, waiting = set(), [min(left)]
        while waiting:
            number = waiting.pop()
            if number not in reached:
                reached.add(number)
                waiting += set(graph.neighbours(number)) & left
        pieces.append(reached != left)
        assert divided or reached == left
    assert any(pieces)  # so that the other case was seen too


def test_neighbours_are_mutual_and_as_many_as_the_degree():
    for clients, degree in ((7, 4), (20, 6), (9, 8), (2, 1)):
        found = Parameters(clients, degree, degree, 2, 0)
        graph = Graph(tuple(range(3, 3 + clients)), found, b"a digest")
        for number in graph.clients:
            around = graph.neighbours(number)
            assert len(set(around) - {number}) == degree
            assert list(around) == sorted(around)
            assert all(number in graph.neighbours(other) for other in around)


@pytest.mark.parametrize(
    ("sentence", "given"),
    [
        ("colluding is 1", (10, 1, 0.1)),
        ("dropping is -0.1", (10, 0.1, -0.1)),
        ("no threshold suits 10 clients of whom 4 may collude and 3 drop", (10, 0.4, 0.3)),
        ("8 of 10 clients are there, but at least 9", (10, 0.1, 0.1, 40, 20, 8)),
    ],
)
def test_mistakes(sentence, given):
    with pytest.raises(UserError, match=sentence):
        parameters(*given)
