"""The rule that goes by evidence: nobody is left out without any, and it is remembered."""

import numpy as np
import pytest
import torch

from fetchsgd.errors import UserError
from fetchsgd.robust import Merger, Vetted
from fetchsgd.robust.record import Record
from fetchsgd.robust.witnesses import confirmed, echoes, evidence, median

ALONE = [[client] for client in range(20)]


def rows_of(seed=0, common=1.0, groups=20, numbers=400):
    """What honest clients send: something in common, and as much again of their own."""
    generator = torch.Generator().manual_seed(seed)
    return common + torch.randn(groups, numbers, generator=generator)


def rounds(record, times, liars=(), common=1.0, lie=lambda row: -row, members=ALONE, first=0):
    """The last of so many rounds in which these clients lie, and the record after it."""
    found = None
    for seed in range(first, first + times):
        clients = rows_of(seed, common)
        for liar in liars:
            clients[liar] = lie(clients[liar])
        rows = torch.stack([clients[list(who)].mean(0) for who in members])
        found = Vetted().vet(rows, members, record)
        record = found.record
    return found, record


@pytest.mark.parametrize("common", [0.0, 0.1, 0.3, 1.0, 10.0])
def test_without_liars_it_is_the_mean(common):
    """However much clients have in common; also where that is nothing."""
    rows = rows_of(common=common)
    torch.testing.assert_close(Vetted().merge(rows), rows.mean(0))


@pytest.mark.parametrize("liars", [1, 2, 6, 8])
@pytest.mark.parametrize("lie", [lambda row: -row, lambda row: torch.randn_like(row)])
def test_with_liars_it_is_the_mean_of_the_others(liars, lie):
    rows = rows_of()
    torch.manual_seed(5)
    for row in range(liars):
        rows[row] = lie(rows[row])
    torch.testing.assert_close(Vetted().merge(rows), rows[liars:].mean(0))


def test_who_sends_the_same_counts_once():
    rows = rows_of(common=0.3)
    rows[:6] = rows[0]
    torch.testing.assert_close(Vetted().merge(rows), rows[5:].mean(0))


def test_the_order_of_echoes_does_not_matter():
    rows = rows_of(common=0.3)
    noise = torch.randn(5, 400, generator=torch.Generator().manual_seed(1))
    rows[1:6] = rows[0] + 0.02 * noise
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(Vetted().merge(rows), Vetted().merge(rows[order]))


def test_a_majority_is_no_echo():
    rows = rows_of(common=30.0)
    assert int(echoes(confirmed_cosines(rows)).sum()) == 20
    rows[:6] *= -1
    torch.testing.assert_close(Vetted().merge(rows), rows[6:].mean(0))


def confirmed_cosines(rows):
    units = torch.nn.functional.normalize(rows.double(), dim=1)
    return units @ units.T


@pytest.mark.parametrize("common", [0.0, 0.3, 1.0])
def test_whatever_a_minority_sends_what_comes_out_is_no_longer_than_the_clip(common):
    merger = Merger(Vetted(), (400,), 0, torch.device("cpu"))
    generator = torch.Generator().manual_seed(3)
    for round in range(3):
        merger.open(round, range(20))
        rows = rows_of(round, common)
        lies = torch.randn(9, 400, generator=generator) * 10 ** torch.arange(9)[:, None]
        rows[:9] = lies
        for client, row in enumerate(rows):
            merger.add(client, row, 1.0)
        longest = float(rows[9:].norm(dim=1).max())
        assert float(merger.mean().norm()) <= 2 * longest
        merger.close()


def test_fewer_than_half_are_left_out_whatever_is_said_of_them():
    record = Record(dict.fromkeys(range(15), 10.0))
    found = Vetted().vet(rows_of(common=0.0), ALONE, record)
    assert found.left_out == 9


def test_a_record_stands_where_a_round_says_nothing():
    """Late in training honest clients have nothing in common: who lied before is still out."""
    _, record = rounds(Record(), 5, liars=range(6))
    late, _ = rounds(record, 1, liars=range(6), common=0.0, first=50)
    rows = rows_of(50, 0.0)
    torch.testing.assert_close(late.merged, rows[6:].mean(0))


def test_more_liars_in_a_round_than_ever_before_are_known_by_their_record():
    """Of 100 clients 30 lie; a round has nine of them, of whom all have been seen."""
    record = Record(dict.fromkeys(range(30), 9.0))
    members = [[client] for client in [*range(9), *range(50, 61)]]
    rows = rows_of(common=0.05)
    rows[:9] *= -1
    found = Vetted().vet(rows, members, record)
    torch.testing.assert_close(found.merged, rows[9:].mean(0))


def test_who_begins_to_lie_after_many_honest_rounds_is_out_soon():
    _, record = rounds(Record(), 200)
    found, _ = rounds(record, 4, liars=[3], first=500)
    assert found.left_out == 1


def test_who_was_suspected_wrongly_is_cleared_soon():
    found, record = rounds(Record(), 5, liars=[3])
    assert found.left_out == 1
    assert rounds(record, 3, first=90)[0].left_out == 0


def test_among_groups_of_several_those_with_a_liar_are_found_in_time():
    """Forty clients in ten groups, drawn anew; two of them send the opposite."""
    record, generator, spoiled, wrong = Record(), np.random.default_rng(0), [], []
    for seed in range(40):
        clients = rows_of(seed, 0.5, groups=40)
        clients[:2] *= -1
        members = generator.permutation(40).reshape(10, 4).tolist()
        rows = torch.stack([clients[who].mean(0) for who in members])
        found = Vetted().vet(rows, members, record)
        record = found.record
        bad = sum(min(who) < 2 for who in members)
        spoiled.append(found.left_out >= bad)
        wrong.append(found.left_out - bad)
    assert all(spoiled[5:])
    # Of 400 groups, in which honest clients answer for the company that they had before.
    assert sum(wrong) <= 20


def test_clients_that_send_nothing_are_not_suspected():
    rows = rows_of()
    rows[:2] = 0
    assert Vetted().vet(rows, ALONE, Record()).left_out == 0


def test_evidence_is_for_a_lie_below_a_third_of_what_is_usual_and_against_one_above():
    rows = rows_of()
    says = evidence(confirmed(rows), torch.ones(20, dtype=torch.float64))
    assert bool((says < 0).all())
    rows[0] = -rows[0]
    assert float(evidence(confirmed(rows), torch.ones(20, dtype=torch.float64))[0]) > 0


def test_the_weighted_median_is_that_of_rows_repeated():
    generator = np.random.default_rng(0)
    values = torch.from_numpy(generator.standard_normal((4, 9)))
    times = torch.from_numpy(generator.integers(0, 4, (4, 9)))
    found = median(values, times.double())
    for row, value, counts in zip(values, found, times, strict=True):
        repeated = row.repeat_interleave(counts).sort().values
        assert value == repeated[(len(repeated) - 1) // 2]


def test_a_record_survives_a_restart():
    merger = Merger(Vetted(), (400,), 0, torch.device("cpu"))
    for round in range(3):
        merger.open(round, range(20))
        for client, row in enumerate(rows_of(round)):
            merger.add(client, -row if client < 2 else row, 1.0)
        first = merger.mean()
        assert torch.equal(first, merger.mean())  # looking twice counts once
        merger.close()
    again = Merger(Vetted(), (400,), 0, torch.device("cpu"))
    again.restore(merger.tensors())
    assert again.record.against == merger.record.against
    assert {c for c, against in again.record.against.items() if against > 0} == {0, 1}
    assert merger.line() == {"merge/shortened": 0, "merge/left_out": 6}
    assert merger.line() == {"merge/shortened": 0, "merge/left_out": 0}


def test_odds_must_be_odds():
    with pytest.raises(UserError, match=r"merge\.odds must be above 1"):
        Vetted(odds=1.0)
