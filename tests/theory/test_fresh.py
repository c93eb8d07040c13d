"""The theorem for fresh hashes: its constants by its own inequalities, and on a problem."""

import math

import pytest
import torch

from fetchsgd.methods import FetchSGD
from fetchsgd.theory import collision_noise, fresh_rate, largest_step

CPU = torch.device("cpu")


def test_noise_as_printed():
    assert collision_noise(1000, 100) == 9
    assert collision_noise(1000, 1000) == collision_noise(10, 1000) == 0
    # As many cells in several rows, averaged: d / c - 1 / r.
    assert collision_noise(1000, 20, rows=5) == pytest.approx(10 - 1 / 5)


@pytest.mark.parametrize("delta", [1.0, 0.3, 0.01])
@pytest.mark.parametrize("noise", [0.0, 7.0, 99.0])
def test_the_step_is_that_of_the_page(delta, noise):
    step = largest_step(2.0, noise, delta)
    assert step == pytest.approx(
        min(1 / (8 * (1 + noise)), delta / (8 * math.sqrt(1 + noise))), rel=1e-12
    )
    found = fresh_rate(2.0, 3.0, 0.5, noise, delta, 1000, step=step / 2)
    eta = step / 2
    floor = (2 * 2 * eta + 8 * 4 * eta**2 / delta**2) * (1 + noise) * 0.5
    assert found.bound == pytest.approx(4 * 3 / (eta * 1000) + floor)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("delta", [1.0, 0.2, 0.05])
def test_the_bound_follows_from_the_inequalities_of_the_proof(delta, momentum):
    """The worst that they allow round by round: a constant gradient norm, errors at their limit."""
    smoothness, gap, variance, noise, rounds = 3.0, 2.0, 0.7, 5.0, 20_000
    found = fresh_rate(smoothness, gap, variance, noise, delta, rounds, momentum=momentum)
    step, norm = found.step, found.bound
    moment = (1 + noise) * (norm + variance)
    eta = step * (1 - momentum)
    velocity = error = 0.0
    for _ in range(3000):
        velocity = (momentum * math.sqrt(velocity) + math.sqrt(moment)) ** 2  # of |u|^2
        error = (1 - delta / 2) * error + 2 / delta * eta**2 * velocity
    shift = step * momentum * math.sqrt(velocity)  # eta rho / (1 - rho) |u|
    drift = (math.sqrt(error) + shift) ** 2 if momentum else error
    # What smoothness promises of a round at this norm is no less than the gap over all rounds.
    gain = step / 2 * norm - step * smoothness**2 / 2 * drift - smoothness * step**2 / 2 * moment
    assert gain * rounds >= gap * (1 - 1e-9)


@pytest.mark.parametrize("part", [1, 8])
def test_a_quadratic_without_heavy_coordinates_stays_below_the_bound(part):
    dim, cols, rounds = 256, 64, 200
    method = FetchSGD(
        dim, dim // part, cols, momentum=0.0, block=1, decode="unbiased", noise_limit=1e6
    )
    x = torch.randn(dim, generator=torch.Generator().manual_seed(0)).sign()
    noise = collision_noise(dim, cols)
    found = fresh_rate(1.0, dim / 2, 0.0, noise, 1 / part, rounds)
    state, norms = method.init(CPU), []
    for round in range(rounds):
        norms.append(float(x.square().sum()))
        table = method.message.compress(x, round)
        sent, state = method.step(table, state, found.step, round=round)
        x = x.index_add(0, sent.sparse.indices, sent.sparse.values, alpha=-1)
    assert sum(norms) / rounds < found.bound
    assert norms[-1] < 0.01 * norms[0]


def test_what_the_theorem_does_not_allow_gets_a_sentence():
    with pytest.raises(ValueError, match="step must be above 0 and at most 0.0312, got 1"):
        fresh_rate(1.0, 1.0, 0.0, 7.0, 1.0, 10, step=1.0)
    with pytest.raises(ValueError, match="delta, what is sent over what there is"):
        fresh_rate(1.0, 1.0, 0.0, 7.0, 0.0, 10)
    with pytest.raises(ValueError, match="momentum must be at least 0 and below 1, got 1"):
        fresh_rate(1.0, 1.0, 0.0, 7.0, 0.5, 10, momentum=1.0)
