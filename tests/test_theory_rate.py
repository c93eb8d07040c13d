"""experiments/theory/rate.py in small: the bound is low enough there to be missed."""

import importlib
from pathlib import Path

import pytest
import torch

from fetchsgd.methods.uncompressed import Uncompressed
from fetchsgd.theory import theorem_1

FOLDER = Path(__file__).parents[1] / "experiments" / "theory"
TAU = 0.45
ROUNDS = {0.0: 256, 0.9: 512}  # by momentum, which makes the bound larger


@pytest.fixture
def rate(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("rate")


def small(rate, light=1e-5):
    return rate.Wells(dim=128, few=2, jump=0.35, light=light)


@pytest.mark.parametrize("momentum", ROUNDS)
def test_norms_are_below_the_bound_where_its_assumptions_hold(rate, momentum):
    wells = small(rate)
    found = rate.measure(wells, momentum, TAU, ROUNDS[momentum], [0])
    assert found["heavy_in_every_round"]
    assert min(found["least_share"], found["least_share_unsketched"]) >= TAU
    assert found["least_removed"] >= TAU / 2
    assert found["longest_gradient"] <= wells.constants.gradient_norm * (1 + 1e-6)
    assert 0 < found["fetchsgd"]["plug_in"] <= found["fetchsgd"]["mean"] < found["derived"]
    assert found["fetchsgd"] != found["uncompressed"]
    assert 0 < found["last_loss"]["fetchsgd"] < wells.constants.gap / 2


@pytest.mark.parametrize("momentum", ROUNDS)
def test_the_bound_is_one_that_standing_still_misses(rate, momentum):
    wells = small(rate)
    bound = theorem_1(wells.constants, TAU, ROUNDS[momentum], momentum)
    still = rate.train(wells, Uncompressed(wells.dim, momentum), 0.0, 8, seed=0)
    assert float(still.norms.min()) > bound.derived


def test_heaviness_that_fails_is_told(rate):
    found = rate.measure(small(rate, light=1.0), 0.0, TAU, 32, [0])
    assert not found["heavy_in_every_round"]
    assert found["least_share"] < TAU


def test_equal_seeds_give_equal_numbers(rate):
    once, again, other = (rate.measure(small(rate), 0.9, TAU, 32, [seed]) for seed in (3, 3, 4))
    assert once == again
    assert once["fetchsgd"] != other["fetchsgd"]


def test_constants_are_those_of_the_function(rate):
    wells = small(rate)
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 400, wells.dim, generator=generator, dtype=torch.float64) * wells.widths
    a.requires_grad_()
    total = sum(wells.loss(one) for one in a)
    (slopes,) = torch.autograd.grad(total, a)
    a = a.detach()
    torch.testing.assert_close(slopes, wells.gradient(a))
    assert wells.loss(torch.zeros(wells.dim)) == 0  # f*
    assert bool((slopes - wells.gradient(b)).norm(dim=1).le((a - b).norm(dim=1)).all())
    steepest = wells.widths / 3**0.5
    steepest[1::2] *= -1
    noise = wells.noise(generator)
    aligned = wells.gradient(steepest).abs() + noise.abs()
    torch.testing.assert_close(float(aligned.norm()), wells.constants.gradient_norm)


def test_least_norms_and_slopes(rate):
    norms = torch.tensor([[4.0, 1.0, 3.0], [4.0, 5.0, 2.0]])
    found = rate.least_norms(norms)
    # One half chooses the second round and the other the third.
    assert found == pytest.approx({"plug_in": 2.5, "mean": 19 / 6, "held_out": (5 + 3) / 2})
    assert rate.slope([(t, 3 / t**0.5) for t in (64, 128, 4096)]) == pytest.approx(-0.5)
