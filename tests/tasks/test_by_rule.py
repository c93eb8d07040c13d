"""Clients by a rule, against a list of the same clients."""

import numpy as np
import pytest
import torch

from fetchsgd.clients.gathering import DropoutSeed, Gatherer
from fetchsgd.errors import UserError
from fetchsgd.tasks import ClientData, from_rule

POOL = torch.arange(50.0)[:, None]


def rule(client, place):
    return (client * 7 + place * 3) % 50


def listed(clients, each):
    owners = np.repeat(np.arange(clients), each)
    rows = torch.from_numpy(rule(owners, np.tile(np.arange(each), clients)))
    return ClientData.from_groups(POOL[rows], POOL[rows, 0].long(), owners)


def test_is_what_a_list_of_the_same_clients_is():
    ruled, plain = from_rule(POOL, POOL[:, 0].long(), rule, 20, 3), listed(20, 3)
    cohort = np.array([19, 4, 0])
    assert ruled.num_clients == plain.num_clients
    assert ruled.sizes.tolist() == plain.sizes.tolist()
    for method in ("gather", "gather_batch"):
        one, other = (
            getattr(Gatherer(data, "uniform", 0, draws=DropoutSeed(5)), method)(cohort, 2)
            for data in (ruled, plain)
        )
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)
        assert torch.equal(one.keys, other.keys)
    alone, also = (
        data.only(4).read(data.only(4).rows(np.array([0]))[0]) for data in (ruled, plain)
    )
    assert torch.equal(alone[0], also[0])


def test_numbers_of_clients_may_be_large():
    data = from_rule(POOL, POOL, rule, 10**12, 4)
    rows, sizes = data.rows(np.array([10**12 - 1]))
    assert sizes.tolist() == [4]
    expected = [((10**12 - 1) * 7 + 3 * place) % 50 for place in range(4)]
    assert data.read(rows)[0].flatten().tolist() == expected
    assert data.owners(rows)[0].tolist() == [[10**12 - 1] * 4]


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda client, place: 5 * client + place, "rows of the pool, 0 to 49, got 0 to 97"),
        (lambda client, place: (client + place) * 0.5, "a whole number for each client and place"),
        (
            lambda client, place: 3 + client[0] + place[0],
            "a whole number for each client and place",
        ),
    ],
)
def test_a_rule_that_is_none_is_refused(bad, sentence):
    with pytest.raises(UserError, match=sentence):
        from_rule(POOL, POOL, bad, 20, 3)


def test_there_is_someone_who_has_something():
    with pytest.raises(UserError, match="clients must be a whole number of at least 1, got 0"):
        from_rule(POOL, POOL, rule, 0, 3)
    with pytest.raises(UserError, match="each must be a whole number of at least 1, got 1.5"):
        from_rule(POOL, POOL, rule, 3, 1.5)
