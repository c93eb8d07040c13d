import tracemalloc

import numpy as np
import pytest

from fetchsgd.randomness import numpy_generator
from fetchsgd.server import sampling
from fetchsgd.server.sampling import MANY, Sampler, permuted


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


def test_cohorts_are_the_ones_that_earlier_versions_drew():
    """Of populations of any size they knew: runs go on, and published rows come out again."""
    clients, round = 3000, 5
    drawn = lambda how: Sampler(clients, 100, how, seed=9).cohort(round)
    generator = lambda: numpy_generator(9, "cohort", round)
    order = numpy_generator(9, "cohort", 0).permutation(clients)
    assert np.array_equal(drawn("epoch"), order[500:600])
    chosen = generator().choice(clients, 100, replace=False, shuffle=False)
    assert np.array_equal(drawn("uniform"), chosen)
    coins = generator().random(clients) < 100 / clients
    assert np.array_equal(drawn("poisson"), np.flatnonzero(coins))


def test_coins_are_the_same_tossed_in_parts(monkeypatch):
    sampler = Sampler(10_000, 100, "poisson", seed=1)
    whole = sampler.cohort(3)
    monkeypatch.setattr(sampling, "COINS", 777)
    assert np.array_equal(sampler.cohort(3), whole)


@pytest.mark.parametrize("size", [1, 2, 3, 100, 1024, 1025, 4999])
def test_a_keyed_order_visits_everyone_once(size):
    assert sorted(permuted(np.arange(size), size, key=5)) == list(range(size))


def test_keyed_orders_look_random():
    """Where someone stands says nothing about the next epoch, or about the next number."""
    size = 40_000
    one, other = (permuted(np.arange(size), size, key) for key in (1, 2))
    # Correlations of random orders have a standard deviation of 1 / 200: five of those, two-sided,
    # are a chance of 6e-7 each.
    for order in (other, np.arange(size), np.roll(one, 1)):
        assert abs(np.corrcoef(one, order)[0, 1]) < 5 / 200
    parities = one % 2 == np.arange(size) % 2
    assert abs(parities.mean() - 0.5) < 5 * 0.5 / 200


def test_memory_does_not_grow_with_the_population():
    clients = 10_000_000
    assert clients > MANY
    for how in ("epoch", "uniform", "poisson"):
        sampler = Sampler(clients, 10_000, how, seed=0)
        tracemalloc.start()
        cohort = sampler.cohort(1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(set(cohort.tolist())) == len(cohort)
        assert abs(len(cohort) - 10_000) < 500  # exact but for coins: five standard deviations
        assert peak < 8e6  # a number for each client would be 80 MB


def test_workers_who_stay_leave_and_join():
    sampler = Sampler(12, 8, "stay", seed=0, leaving=4, leave_every=20)
    assert sampler.rounds_per_epoch == 1
    for t in range(20):
        assert sampler.cohort(t).tolist() == list(range(8))
        assert sampler.cohort(20 + t).tolist() == list(range(4, 12))
    assert [sampler.needed(rounds) for rounds in (1, 20, 21, 40, 41)] == [8, 8, 12, 12, 16]
    assert Sampler(8, 8, "stay", seed=0).needed(10**6) == 8
