"""The theorem for fresh hashes: its constants by its own inequalities, and on a problem."""

import math

import pytest
import torch

from fetchsgd.methods import FetchSGD
from fetchsgd.server.grids.steps import StepGrid
from fetchsgd.sketch import CountSketch
from fetchsgd.theory import (
    collision_noise,
    fresh_rate,
    grid_rate,
    largest_grid_step,
    largest_step,
)

CPU = torch.device("cpu")


def test_noise_as_printed():
    assert collision_noise(1000, 100) == 9
    assert collision_noise(1000, 1000) == collision_noise(10, 1000) == 0
    # As many cells in several rows, averaged: d / c - 1 / r.
    assert collision_noise(1000, 20, rows=5) == pytest.approx(10 - 1 / 5)
    # A last group that is smaller counts as a whole one, and blocks leave cells empty.
    assert collision_noise(1001, 100) == 10
    assert collision_noise(1000, 100, block=16) == 10
    assert collision_noise(100, 100, block=16) == 0


HASHES = 400


def estimates(gradient, cols, block):
    first = CountSketch(len(gradient), 1, cols, 0, block, hash="permutation")
    for round in range(HASHES):
        one = first.for_round(round)
        yield one.estimate(one.sketch(gradient))


@pytest.mark.parametrize(("dim", "cols", "block"), [(250, 100, 1), (250, 100, 4), (270, 101, 16)])
def test_noise_where_the_last_group_is_smaller(dim, cols, block):
    """omega is (d - Q + (Q - l) share) / Q, with l and share of the last group: its bound there."""
    used = cols // block * block
    most = collision_noise(dim, cols, block=block)
    last = dim - int(most) * used
    assert most == 2
    assert 0 < last < used
    whole = torch.randn(dim, generator=torch.Generator().manual_seed(0))
    at_the_end = torch.cat([torch.zeros(dim - last), torch.ones(last)])
    found = []
    for gradient in (whole * at_the_end, whole, whole * (1 - at_the_end)):
        energy = float(gradient.square().sum())
        share = float(gradient[-last:].square().sum()) / energy
        errors = [float((x - gradient).square().sum()) for x in estimates(gradient, cols, block)]
        found.append(sum(errors) / HASHES / energy)
        assert found[-1] == pytest.approx((dim - used + (used - last) * share) / used, rel=0.02)
    assert found[0] == pytest.approx(most, rel=1e-5)  # each cell of the others has all its energy
    assert found[0] > 1.05 * (dim / used - 1)


def test_what_a_step_does_where_curvatures_differ():
    """E |noise|^2 in the norm of H is at most (L + S) |g|^2 / c, S the sum of all curvatures."""
    dim, cols = 128, 32
    generator = torch.Generator().manual_seed(0)
    directions, _ = torch.linalg.qr(torch.randn(dim, dim, generator=generator))
    curvatures = 1 / torch.arange(1, dim + 1).float()
    hessian = directions * curvatures @ directions.T
    x = torch.randn(dim, generator=generator)
    gradient = hessian @ x
    energy, rate = float(gradient.square().sum()), 2 / (1 + 1 / cols + curvatures.sum() / cols)
    at_rest = float(x @ hessian @ x) / 2

    def after(times):
        ends = [x - times * rate * one for one in estimates(gradient, cols, block=1)]
        return sum(float(end @ hessian @ end) / 2 for end in ends) / HASHES

    # At the rate of the page nothing is gained for sure; at half of it a quarter of rate |g|^2 is.
    assert after(1) < at_rest
    assert after(0.5) < at_rest - rate / 4 * energy
    # If all curvatures were 1, then the rate could be no more than 2 c / d.
    assert rate > 3 * 2 * cols / dim


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


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_bound_on_a_grid_follows_from_the_inequalities_of_the_proof(momentum):
    smoothness, gap, variance, noise, rounding, rounds = 3.0, 2.0, 0.7, 5.0, 0.3, 20_000
    most = largest_grid_step(smoothness, noise, momentum)
    drift = 2 * (momentum / (1 - momentum)) ** 2
    limit = 1 / (2 * smoothness * (1 + noise))
    assert most + smoothness * drift * most**2 == pytest.approx(limit, rel=1e-12)
    for step in (most, most / 10):
        found = grid_rate(
            smoothness, gap, variance, noise, rounding, rounds, step=step, momentum=momentum
        )
        norm = found.bound
        moment = (1 + noise) * (norm + variance)
        distance = math.sqrt(rounding) + step * momentum / (1 - momentum) * math.sqrt(moment)
        lost = step * smoothness**2 / 2 * distance**2 + smoothness * step**2 / 2 * moment
        assert (step / 2 * norm - lost) * rounds >= gap * (1 - 1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_quadratic_on_a_grid_of_steps_stays_below_the_bound(momentum):
    """k = 0, and noise in the clients' mean gradient as well."""
    dim, cols, rounds, spread = 250, 100, 500, 0.05
    origin = torch.randn(dim, generator=torch.Generator().manual_seed(0))
    grid = StepGrid((dim,), origin, step=0.5)
    rounding = dim * float(grid.tensor_steps[0] / 2) ** 2
    noise, variance = collision_noise(dim, cols), dim * spread**2
    gap = float(origin.square().sum()) / 2
    found = grid_rate(1.0, gap, variance, noise, rounding, rounds, momentum=momentum)
    method = FetchSGD(
        dim, k=0, cols=cols, momentum=momentum, block=1, decode="unbiased", noise_limit=1e6
    )
    place, state, norms = grid.start(origin), method.init(CPU), []
    generator = torch.Generator().manual_seed(1)
    rate = found.step * (1 - momentum)
    for round in range(rounds):
        norms.append(float(place.weights.square().sum()))
        mean = place.weights + spread * torch.randn(dim, generator=generator)
        table = method.message.compress(mean, round)
        sent, state = method.step(table, state, rate, grid.deliver(place), round=round)
        place = grid.move(place, sent)
        assert float(state["error"].square().sum()) <= rounding * (1 + 1e-5)
    assert sum(norms) / rounds < found.bound
    assert norms[-1] < 0.2 * norms[0]


@pytest.mark.parametrize("part", [1, 8])
def test_a_quadratic_without_heavy_coordinates_stays_below_the_bound(part):
    dim, cols, rounds = 256, 64, 200
    method = FetchSGD(
        dim, k=dim // part, cols=cols, momentum=0.0, block=1, decode="unbiased", noise_limit=1e6
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
    with pytest.raises(ValueError, match="step must be above 0 and at most 0.0625, got 1"):
        grid_rate(1.0, 1.0, 0.0, 7.0, 0.1, 10, step=1.0)
    with pytest.raises(ValueError, match="block must be from 1 to 100, got 128"):
        collision_noise(1000, 100, block=128)
