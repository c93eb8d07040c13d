"""The most that one client's whole levels can be, through rotation, scaling and rounding."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fetchsgd.privacy import DistributedNoise, Source, most_size, most_squares, round_within
from fetchsgd.privacy.rounding import BETA

COUNT, STEP = 256, 0.25


def rotation(generator):
    """Signs and a Hadamard matrix: orthogonal, but for the rounding of floats."""
    matrix = torch.ones(1, 1)
    while len(matrix) < COUNT:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randint(0, 2, (COUNT,), generator=generator) * 2.0 - 1
    return signs[:, None] * matrix / math.sqrt(COUNT)


def worst_cases(clip):
    """As long as the clip allows: in all cells, in one, halves of a step, and between."""
    flat = torch.full((COUNT,), clip / math.sqrt(COUNT))
    spike = torch.zeros(COUNT)
    spike[3] = clip
    halves = torch.zeros(COUNT)
    some = min(max(int((clip / (STEP / 2)) ** 2), 1), COUNT)
    halves[:some] = min(STEP / 2, clip / math.sqrt(some))
    mixed = torch.linspace(-1, 1, COUNT)
    return torch.stack([flat, -flat, spike, halves, clip * mixed / mixed.norm()])


def uniform_from(generator):
    return lambda _: torch.rand(5, COUNT, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("clip", [0.05, 1.0, 8.0, 200.0])
def test_levels_stay_within_the_bound_and_do_so_soon(clip, generator):
    squares = most_squares(clip, STEP, COUNT)
    rows = worst_cases(clip) @ rotation(generator)
    tries = []
    for _ in range(200):
        draws = uniform_from(generator)
        counted = []
        levels = round_within(
            rows, STEP, squares, lambda attempt, d=draws, c=counted: c.append(attempt) or d(attempt)
        )
        found = levels.square().sum(1)
        assert (found <= squares).all()
        assert (levels.abs().sum(1) <= most_size(squares, COUNT)).all()
        tries.append(len(counted))
    # Five rows at once, each short enough with probability 1 - BETA at least.
    assert sum(tries) / len(tries) < math.log(5) / -math.log(BETA) + 3


def test_the_bound_is_not_idle():
    """Rounded up everywhere, a short vector would be longer than the bound allows."""
    squares = most_squares(0.5, STEP, COUNT)
    rows = torch.full((5, COUNT), 1e-3)
    up = round_within(rows, STEP, squares, lambda _: torch.full((5, COUNT), 0.999999).double())
    assert squares < COUNT
    assert (up == 0).all()


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 10**7))
def test_bounds_are_between_what_must_and_what_can_be(clip, step, count):
    squares = most_squares(clip, step, count)
    assert (clip / step) ** 2 - 1 <= squares <= max((clip / step + math.sqrt(count)) ** 2, 1)
    assert most_size(squares, count) <= squares


def test_rounding_is_unbiased_where_the_bound_is_wide(generator):
    rows = torch.rand(5, COUNT, generator=generator)
    squares = most_squares(float(rows.norm(dim=1).max()) * 2, STEP, COUNT)
    repeats = 400
    draws = uniform_from(generator)
    levels = [round_within(rows, STEP, squares, draws).double() for _ in range(repeats)]
    mean = sum(levels) * STEP / repeats
    # 1,280 means of 400 numbers that vary by at most a step: six deviations, once in a million.
    assert (mean - rows).abs().max() < 6 * STEP / 2 / math.sqrt(repeats)


def test_what_is_too_long_or_not_a_number_is_shortened(generator):
    squares = most_squares(1.0, STEP, COUNT)
    rows = worst_cases(1.0) * torch.tensor([1e3, 1.0, 1e30, math.inf, math.nan])[:, None]
    levels = round_within(rows, STEP, squares, uniform_from(generator))
    assert (levels.square().sum(1) <= squares).all()
    assert levels[2].square().sum() > 0


@pytest.mark.parametrize("kind", ["discrete_gaussian", "skellam"])
def test_noise_of_clients_adds_up_to_what_is_accounted(kind):
    own = DistributedNoise(kind, noise=1.5, clip=1.0, step=0.05, count=4000, clients=20)
    noise, levels = own.of_a_client, torch.zeros(4000, dtype=torch.int64)
    assert float(noise.variance) * 20 >= 1.5**2 * own.squares
    source = Source.from_seed(0)
    total = sum(noise.add_noise(levels, source, 0, client) for client in range(20))
    wanted = float(noise.variance) * 20
    # The variance of 4,000 numbers, within five of its own deviations: once in two million.
    assert total.double().var() == pytest.approx(wanted, rel=5 * math.sqrt(2 / 4000))
    moved = noise.add_noise(levels + 7, source, 0, 3)
    assert torch.equal(moved, noise.add_noise(levels, source, 0, 3) + 7)
