import numpy as np
import pytest

from fetchsgd.server.sampling import Sampler


@pytest.mark.parametrize("per_round", [1, 7, 10, 23])
def test_an_epoch_visits_every_client_once(per_round):
    sampler = Sampler(23, per_round, "epoch", seed=0)
    for epoch in range(3):
        rounds = range(epoch * sampler.rounds_per_epoch, (epoch + 1) * sampler.rounds_per_epoch)
        visited = np.concatenate([sampler.cohort(t) for t in rounds])
        assert sorted(visited) == list(range(23))


def test_epochs_differ_in_order():
    sampler = Sampler(100, 100, "epoch", seed=0)
    assert not np.array_equal(sampler.cohort(0), sampler.cohort(1))


def test_uniform_draws_are_distinct_within_a_round_and_even_over_many():
    sampler = Sampler(20, 5, "uniform", seed=0)
    counts = np.zeros(20)
    for t in range(2000):
        cohort = sampler.cohort(t)
        assert len(set(cohort)) == 5
        counts[cohort] += 1
    # Mean 500, standard deviation 19.4; five of those is a chance of 1e-5 over 20 clients.
    assert np.abs(counts - 500).max() < 5 * 19.4


@pytest.mark.parametrize("how", ["epoch", "uniform"])
def test_depends_on_seed_and_round_alone(how):
    one, other = Sampler(50, 10, how, seed=3), Sampler(50, 10, how, seed=3)
    [one.cohort(t) for t in range(8)]  # going through earlier rounds makes no difference
    assert np.array_equal(one.cohort(8), other.cohort(8))
    assert not np.array_equal(one.cohort(8), Sampler(50, 10, how, seed=4).cohort(8))


def test_workers_who_stay_leave_and_join():
    sampler = Sampler(12, 8, "stay", seed=0, leaving=4, leave_every=20)
    assert sampler.rounds_per_epoch == 1
    for t in range(20):
        assert sampler.cohort(t).tolist() == list(range(8))
        assert sampler.cohort(20 + t).tolist() == list(range(4, 12))
    assert [sampler.needed(rounds) for rounds in (1, 20, 21, 40, 41)] == [8, 8, 12, 12, 16]
    assert Sampler(8, 8, "stay", seed=0).needed(10**6) == 8
