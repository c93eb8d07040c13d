"""Rules that a minority of liars cannot steer, and the sums of groups that they merge."""

import pytest
import torch

from fetchsgd.errors import UserError
from fetchsgd.robust import RULES, Clipped, Filtered, Median, Merger, Nearest, Trimmed
from fetchsgd.robust.groups import Groups

ROBUST = [name for name in RULES if name != "mean"]
DROPPING = {"median": Median(), "trimmed": Trimmed(), "nearest": Nearest(), "filtered": Filtered()}


def rows_of(groups=20, numbers=50, spread=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 1 + spread * torch.randn(groups, numbers, generator=generator)


def merger(rule, numbers=50):
    return Merger(rule, (numbers,), 0, torch.device("cpu"))


@pytest.mark.parametrize("name", ROBUST)
def test_where_all_agree_that_is_what_comes_out(name):
    rows = rows_of(1).expand(20, -1)
    torch.testing.assert_close(RULES[name]().merge(rows), rows[0])


@pytest.mark.parametrize("name", ROBUST)
def test_the_order_of_groups_does_not_matter(name):
    rows, rule = rows_of(), RULES[name]()
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(rule.merge(rows), rule.merge(rows[order]))


@pytest.mark.parametrize("name", DROPPING)
@pytest.mark.parametrize("liars", [1, 2, 6])
def test_as_many_liars_as_are_allowed_move_it_less_than_honest_clients_differ(name, liars):
    """The mean of honest rows is 1 in each cell, and a row is 0.3 away from it."""
    rows = rows_of()
    rows[:liars] = -1
    merged = DROPPING[name].merge(rows)
    assert float((merged - 1).abs().mean()) < 0.3
    assert float(rows.mean(0).mean()) < 1 - liars / 20  # which the mean does not withstand


@pytest.mark.parametrize("rule", [Median(), Trimmed()])
def test_by_cell_nothing_leaves_the_range_of_the_honest(rule):
    rows = rows_of()
    honest = rows[6:].clone()
    rows[:6] = 1e6
    merged = rule.merge(rows)
    assert bool((merged >= honest.amin(0)).all() and (merged <= honest.amax(0)).all())


def test_filtered_drops_those_who_pull_in_one_direction():
    rows = rows_of()
    rows[:6] = -0.5
    torch.testing.assert_close(Filtered().merge(rows), rows[6:].mean(0))


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ROBUST)
def test_few_groups_are_merged_too(name, groups):
    assert bool(RULES[name]().merge(rows_of(groups)).isfinite().all())


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(UserError, match=r"merge\.groups must be from 3"):
        Median(groups=2)
    with pytest.raises(UserError, match=r"merge\.liars must be above 0 and below 0\.5"):
        Trimmed(liars=0.5)
    with pytest.raises(UserError, match=r"merge\.clip must be 0"):
        Clipped(clip=-1.0)


def test_a_cohort_is_dealt_out_evenly_and_anew_in_every_round():
    deals = [Groups(0, round, list(range(100, 163)), 20) for round in range(2)]
    sizes = [0] * 20
    for client in range(100, 163):
        sizes[deals[0].of(client)] += 1
    assert set(sizes) == {3, 4}
    assert [deals[0].of(c) for c in range(100, 163)] != [deals[1].of(c) for c in range(100, 163)]
    assert 0 <= deals[0].of(7) < 20  # a spare


def test_without_a_clip_groups_of_one_are_summed_as_a_mean():
    merging, rows = merger(Clipped(clip=0.0)), rows_of()
    merging.open(3, range(20))
    for client, row in enumerate(rows):
        merging.add(client, row, 5.0)
    torch.testing.assert_close(merging.mean(), rows.mean(0))


def test_memory_is_that_of_the_groups():
    merging = merger(Median(groups=5))
    merging.open(0, range(100))
    for client in range(100):
        merging.add(client, rows_of(1, seed=client)[0], 1.0)
    assert len(merging.sums) == 5
    assert float((merging.mean() - 1).abs().max()) < 0.5


def test_a_claim_counts_within_its_group_alone():
    merging, rows = merger(Clipped(clip=0.0)), rows_of()
    merging.open(0, range(20))
    for client, row in enumerate(rows):
        merging.add(client, row, 1e9 if client == 4 else 1.0)
    torch.testing.assert_close(merging.mean(), rows.mean(0))


@pytest.mark.parametrize("groups", [20, 5])
def test_long_replies_are_scaled_down_to_what_is_usual(groups):
    merging = merger(Clipped(groups=groups))
    for round in range(2):
        merging.open(round, range(20))
        for client, row in enumerate(rows_of()):
            merging.add(client, row * (1e6 if client < 2 else 1), 1.0)
        assert float(merging.mean().norm()) < 1.1 * merging_norm()
        merging.close()
    assert merging.line() == {"merge/shortened": pytest.approx(12, abs=4)}


def merging_norm():
    return float(rows_of().norm(dim=1).median())


def test_what_is_usual_survives_a_restart():
    merging = merger(Clipped())
    merging.open(0, range(20))
    for client, row in enumerate(rows_of()):
        merging.add(client, row, 1.0)
    merging.close()
    again = merger(Clipped())
    again.restore(merging.tensors())
    assert again.usual == merging.usual > 0
