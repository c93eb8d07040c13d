"""experiments/theory/spread.py in small: a window finds late bursts, vanilla does not."""

import importlib
import math
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "experiments" / "theory"


@pytest.fixture
def spread(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("spread")


def small(spread, rounds=200):
    # 0.68 leaves room for what noise adds to a weight, which is more where weights are few.
    return spread.Spread(dim=1000, rounds=rounds, share=0.68)


def late(problem, tau):
    """Bursts that end when, with all gradients in one sketch, they are too light to be found."""
    ends = torch.arange(problem.bursts) * problem.period + problem.burst
    return ends > problem.buried(0.5 * tau)


@pytest.mark.parametrize("form", ["overlapping", "histogram"])
def test_a_window_finds_every_burst_and_no_noise(spread, form):
    problem = small(spread)
    seen = spread.train(problem, spread.Setting("theorem", "threshold", problem.burst, form), 0)
    assert seen.least_heavy >= 1.5 * spread.TAU
    assert bool(seen.found.all())
    assert seen.noise_sent == 0
    assert float(seen.learnt[late(problem, spread.TAU)].mean()) > 0.6


def test_vanilla_accumulation_finds_the_first_burst_and_no_late_one(spread):
    problem = small(spread)
    seen = spread.train(problem, spread.Setting("theorem"), 0)
    drowned = late(problem, spread.TAU)
    assert int(drowned.sum()) >= 3
    assert bool(seen.found[0])
    assert not bool(seen.found[drowned].any())
    assert float(seen.learnt[drowned].max()) == 0


def test_single_gradients_are_too_light(spread):
    problem = small(spread, rounds=50)
    one, whole = (
        spread.train(problem, spread.Setting("small", "threshold", window), 0)
        for window in (1, problem.burst)
    )
    assert one.most_at_once < spread.TAU
    assert float(one.learnt.mean()) < float(whole.learnt.mean()) / 2


def test_equal_seeds_give_equal_numbers(spread):
    problem = spread.Spread(dim=200, rounds=20)
    setting = spread.Setting("small", "threshold", 4)
    once, again, other = (spread.measure(problem, setting, [seed]) for seed in (3, 3, 4))
    assert once == again
    assert once["losses"] != other["losses"]


def test_shares_are_those_of_the_sums(spread):
    problem = spread.Spread(dim=20_000)
    generator = torch.Generator().manual_seed(0)

    def share(rounds):
        total = sum(problem.noise(generator) for _ in range(rounds))
        total[0] += problem.target
        return float(total[0] / total.norm())

    assert share(problem.burst) == pytest.approx(problem.share, abs=0.03)
    assert share(round(problem.buried(0.2))) == pytest.approx(0.2, abs=0.03)
    assert float(problem.noise(generator).norm()) == pytest.approx(1, rel=1e-4)
    assert math.isclose(problem.buried(problem.share), problem.burst)
