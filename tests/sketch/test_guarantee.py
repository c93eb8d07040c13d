"""The guarantees of docs/hash.md, measured over many seeds on inputs chosen to break them.

Seeds are fixed, so the outcome never changes. Had they been drawn at random, a correct sketch
would fail any one of these tests with the probability that the test states.
"""

import math

import pytest
import torch

from fetchsgd import CountSketch

DIM = 9_000  # no multiple of a block
COLS = 1_500
SEEDS = 600
BLOCKS = [1, 64, 1024]


def spread(**places):
    x = torch.zeros(DIM)
    for step in places.values():
        x[::step] = 1.0
    return x


def gaussian():
    return torch.randn(DIM, generator=torch.Generator().manual_seed(0))


INPUTS = {
    "gaussian": gaussian(),
    "one block": torch.cat([torch.zeros(1024), torch.ones(1024), torch.zeros(DIM - 2048)]),
    "stride 64": spread(step=64),
    "stride 512": spread(step=512),
    "constant": torch.ones(DIM),
    "one huge coordinate": gaussian() + 1000.0 * (torch.arange(DIM) == 4321),
    "power law": (1 + torch.arange(DIM)).pow(-0.7),
}


def errors(x, block):
    """(SEEDS, DIM) errors of the estimates of one-row sketches."""
    rows = []
    for seed in range(SEEDS):
        sketch = CountSketch(DIM, 1, COLS, seed, block)
        rows.append(sketch.estimate(sketch.sketch(x)) - x)
    return torch.stack(rows).double()


def assert_at_most(samples, bound):
    """The mean of each column is at most the bound, up to six of its own standard errors.

    By the normal approximation a mean at the bound exceeds that with probability 1e-9.
    """
    standard_error = samples.std(dim=0) / math.sqrt(SEEDS)
    assert (samples.mean(dim=0) <= bound + 6 * standard_error).all()


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", INPUTS)
def test_unbiased_and_of_bounded_variance(name, block):
    x = INPUTS[name]
    bound = float(x.double().square().sum()) / COLS
    found = errors(x, block)
    # The mean error of each of nine coordinates lies within six standard deviations of zero, by
    # the bound on the variance: a normal tail of 2e-9 each.
    picks = torch.arange(0, DIM, 1000)
    means = found[:, picks].mean(dim=0)
    assert means.abs().max() <= 6 * math.sqrt(bound / SEEDS)
    # So is the excess of the mean squared error over the bound, over all coordinates ...
    squares = found.square()
    assert_at_most(squares.mean(dim=1), bound)
    # ... and over those at one place modulo 64, where starts that are not uniform pile up errors.
    assert_at_most(squares[:, : DIM // 64 * 64].reshape(SEEDS, -1, 64).mean(dim=1), bound)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", INPUTS)
def test_all_heavy_coordinates_are_recovered(name, block):
    """At the size of appendix B: O(log(d / delta)) rows of O(1 / tau) columns.

    By Chebyshev one row is off by more than 4 |x| / sqrt(cols) with probability at most 1/16, so
    the median of 25 with probability at most P(Bin(25, 1/16) >= 13) < 2e-9, and some coordinate of
    9,000 with probability under 2e-5. Here cols = 256 / tau makes that error |x| sqrt(tau) / 4.
    """
    tau, rows = 0.05, 25
    cols = int(256 / tau)
    x = INPUTS[name].clone()
    norm_of_rest = float(x.norm())
    heavy = torch.tensor([0, 70, 1023, 1024, 5000, DIM - 1])
    # Each of the six then holds a little more than tau of all energy, which is at most 1 / tau.
    x[heavy] = (
        1.05 * norm_of_rest * math.sqrt(tau / (1 - 6 * tau)) * torch.tensor([1, -1, 1, -1, 1, 1.0])
    )
    norm = float(x.norm())
    if name != "one huge coordinate":  # which leaves no room for others
        assert (x[heavy].square() >= tau * norm**2).all()
    sketch = CountSketch(DIM, rows, cols, seed=1, block=block)
    table = sketch.sketch(x)
    worst = (sketch.estimate(table) - x).abs().max()
    assert worst <= 4 * norm / math.sqrt(cols)
    is_heavy = (x.square() >= tau * norm**2).nonzero().squeeze(1)
    found = sketch.heavy_hitters(table, math.sqrt(tau) / 2)
    assert torch.isin(is_heavy, found.indices).all()
    # Nothing far below the threshold comes with them.
    assert x[found.indices].square().min() >= tau * norm**2 / 64


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", INPUTS)
def test_l2_is_within_its_bound(name, block):
    """Mean |x|^2, variance at most 2 B / cols |x|^4; both up to six standard errors."""
    x = INPUTS[name]
    energy = float(x.double().square().sum())
    ratios = []
    for seed in range(SEEDS):
        sketch = CountSketch(DIM, 1, COLS, seed, block)
        ratios.append(sketch.l2(sketch.sketch(x)) ** 2 / energy - 1)
    deviation = torch.tensor(ratios, dtype=torch.float64)
    bound = 2 * block / COLS
    assert abs(deviation.mean()) <= 6 * math.sqrt(bound / SEEDS)
    assert_at_most(deviation.square(), bound)
    if name == "gaussian":  # where signs vary within blocks, these cost nothing
        assert_at_most(deviation.square(), 2 / COLS)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_l2_is_the_median_over_rows(rows):
    sketch = CountSketch(DIM, rows, COLS, block=1)
    table = sketch.sketch(INPUTS["gaussian"])
    energies = sorted(table.double().square().sum(dim=1).tolist())
    middle = (energies[(rows - 1) // 2] + energies[rows // 2]) / 2
    assert sketch.l2(table) == pytest.approx(math.sqrt(middle))
