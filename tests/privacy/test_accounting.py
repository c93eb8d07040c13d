"""What is promised: against exact divergences, against dp-accounting, and against brute force."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from scipy.special import ive

from fetchsgd.privacy import (
    Accountant,
    DistributedNoise,
    Gaussian,
    Participation,
    distributed_noise_for,
    noise_for,
    renyi,
)
from fetchsgd.privacy.accounting import gaussian_epsilon
from fetchsgd.privacy.renyi import DiscreteGaussians, PoissonSampled, Skellams
from fetchsgd.server.sampling import Sampler

DELTA = 1e-5


def divergence(p, shift, order):
    """Of a distribution on a lattice from itself, moved."""
    moved, still = p[:-shift], p[shift:]
    return math.log(math.fsum(moved**order * still ** (1 - order))) / (order - 1)


@pytest.mark.parametrize("variance", [5.0, 40.0, 900.0])
@pytest.mark.parametrize("shift", [1, 3])
def test_skellam_bounds_are_above_and_near_the_divergence(variance, shift):
    reach = int(12 * variance**0.5)
    p = ive(np.abs(np.arange(-reach, reach + 1)), variance)
    for order in (2, 4, 8):
        bound = Skellams(variance, shift, shift)(order)
        found = divergence(p, shift, order)
        assert found <= bound
        if variance == 900.0:
            assert bound < 1.01 * found


def gaussian_weights(variance):
    k = np.arange(-60, 61, dtype=float)
    weights = np.exp(-(k**2) / (2 * variance))
    return weights / weights.sum()


@pytest.mark.parametrize("variance", [0.4, 0.6, 1.0])
@pytest.mark.parametrize("clients", [2, 4])
def test_sums_of_discrete_gaussians_are_as_near_to_one_as_accounted(variance, clients):
    own, total = gaussian_weights(variance), np.ones(1)
    for _ in range(clients):
        total = np.convolve(total, own)
    one = gaussian_weights(clients * variance)
    middle = len(total) // 2
    # Where probabilities are small, floats say little of their ratio.
    near = slice(middle - 5, middle + 6)
    ratio = np.abs(np.log(total[near] / one[55:66])).max()
    curve = DiscreteGaussians(variance, clients, 1.0, 1)
    assert ratio <= curve.distance
    for order in (2, 5):
        p = total[middle - 12 : middle + 13]
        assert divergence(p, 1, order) <= curve(order)


def test_in_the_limit_all_are_gaussian():
    wanted = Gaussian(2.0)
    for kind in ("discrete_gaussian", "skellam"):
        own = DistributedNoise(kind, 2.0, clip=1.0, step=1e-4, count=1000, clients=50)
        for order in renyi.ORDERS[:62]:
            assert wanted(order) * (1 - 1e-6) <= own.curve(order) <= wanted(order) * 1.002
    coarse = DistributedNoise("discrete_gaussian", 0.2, 1.0, step=1.0, count=1000, clients=50)
    assert coarse.curve(8) > 5 * Gaussian(0.2)(8)


def test_sampled_gaussians_are_those_of_dp_accounting():
    ours = PoissonSampled(Gaussian(0.9), 0.07)
    theirs = dp.rdp.RdpAccountant([float(order) for order in renyi.ORDERS])
    theirs.compose(dp.PoissonSampledDpEvent(0.07, dp.GaussianDpEvent(0.9)), 200)
    assert renyi.epsilon(ours, 200, DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-9)
    assert PoissonSampled(Gaussian(0.9), 1.0)(5) == Gaussian(0.9)(5)
    other = PoissonSampled(Skellams(1e8, 1e4 / 0.9, 1e4 / 0.9), 0.07)
    for order in (2, 8, 20):
        assert ours(order) <= other(order) * (1 + 1e-6) <= 4 * ours(order)


@pytest.mark.parametrize("noise", [0.7, 1.0, 6.0])
def test_repeated_gaussians_are_exact(noise):
    found = gaussian_epsilon(noise, DELTA)
    theirs = dp.pld.PLDAccountant().compose(dp.GaussianDpEvent(noise)).get_epsilon(DELTA)
    assert found == pytest.approx(theirs, rel=2e-3)
    assert found <= theirs
    who = Participation("epoch", 100, 10)
    nine = Accountant(Gaussian(3 * noise), who).epsilon(rounds=90, delta=DELTA)
    assert nine == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize(("clients", "per_round"), [(10, 3), (12, 4), (5, 5), (7, 1)])
def test_in_an_epoch_nobody_takes_part_more_often_than_accounted(clients, per_round):
    sampler = Sampler(clients, per_round, "epoch", seed=3)
    who = Participation("epoch", clients, per_round)
    taken, most = np.zeros(clients, dtype=int), []
    for round in range(4 * sampler.rounds_per_epoch):
        taken[sampler.cohort(round)] += 1
        most.append(taken.max())
        assert taken.max() <= who.times(round + 1)
    assert most[-1] == who.times(len(most)) == 4


def test_coins_are_tossed_with_the_chance_that_is_accounted():
    sampler, who = Sampler(40, 10, "poisson", seed=0), Participation("poisson", 40, 10)
    rounds = 2000
    takes_part = np.zeros((rounds, 40))
    for round in range(rounds):
        takes_part[round, sampler.cohort(round)] = 1
    # 40 shares and 780 products of 2,000 coins: five deviations, once in two thousand seeds.
    assert np.abs(takes_part.mean(0) - who.chance).max() < 5 * math.sqrt(0.1875 / rounds)
    together = takes_part.T @ takes_part / rounds - np.eye(40) * 0.1875
    assert np.abs(together - who.chance**2).max() < 5 * math.sqrt(0.1875 / rounds)


def test_sampling_gains_most_by_coins_and_nothing_if_it_shows():
    def spent(how, sampled=True, by="pld"):
        who = Participation(how, 1000, 50, sampled)
        return Accountant(Gaussian(3.0), who, by).epsilon(200, DELTA)

    assert spent("poisson") < spent("poisson", by="rdp") < spent("epoch")
    assert spent("poisson") < spent("uniform") < spent("uniform", sampled=False)
    assert spent("poisson", sampled=False) == spent("uniform", sampled=False)


@pytest.mark.parametrize("how", ["poisson", "epoch"])
def test_the_noise_for_an_epsilon_is_enough_and_hardly_more(how):
    who = Participation(how, 600, 50)
    noise = noise_for(1.0, DELTA, who, 120)
    assert float(f"{noise:.4g}") == noise
    accountant = Accountant(Gaussian(noise), who)
    assert 0.99 < accountant.epsilon(120, DELTA) <= 1.0
    assert accountant.rounds_within(1.0, DELTA, 120) == 120
    at_most = accountant.rounds_within(0.5, DELTA, 120)
    assert accountant.epsilon(at_most, DELTA) <= 0.5 < accountant.epsilon(at_most + 1, DELTA)
    assert accountant.epsilon(0, DELTA) == 0


def test_noise_in_levels_for_an_epsilon():
    who = Participation("epoch", 600, 50, sampled=False)
    shape = DistributedNoise("skellam", 1.0, clip=1.0, step=0.02, count=2000, clients=50)
    own = distributed_noise_for(4.0, DELTA, who, 120, shape)
    gaussian = noise_for(4.0, DELTA, who, 120, "rdp")
    assert gaussian <= own.noise < 1.02 * gaussian


def test_what_cannot_be():
    with pytest.raises(ValueError, match="from 1 to 10, got 11"):
        Participation("poisson", 10, 11)
    with pytest.raises(ValueError, match="no noise up to 1e"):
        noise_for(1e-9, 1e-12, Participation("epoch", 10, 5), 10**9)
