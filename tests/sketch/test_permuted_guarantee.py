"""What docs/hash.md proves of the hash without tables, measured over many keys.

Inputs are chosen to break it. Seeds are fixed, so the outcome never changes. Had they been drawn at
random, a correct sketch would fail any one of these tests with the probability that it states.
"""

import math

import pytest
import torch

from fetchsgd import CountSketch

DIM = 9_000  # no multiple of a block or a group
COLS = 1_500
SEEDS = 600
BLOCKS = [1, 16, 256]


def every(step):
    x = torch.zeros(DIM)
    x[::step] = 1.0
    return x


def gaussian():
    return torch.randn(DIM, generator=torch.Generator().manual_seed(0))


INPUTS = {
    "gaussian": gaussian(),
    "layers of one sign": torch.arange(DIM).div(1000, rounding_mode="floor").sub(4.0).sign(),
    "one block": torch.cat([torch.zeros(1024), torch.ones(1024), torch.zeros(DIM - 2048)]),
    "stride 16": every(16),
    "stride 64": every(64),
    "stride of a group": every(1500),
    "powers of two": torch.zeros(DIM).index_fill_(0, 2 ** torch.arange(13), 1.0),
    "one huge coordinate": gaussian() + 1000.0 * (torch.arange(DIM) == 4321),
    "power law": (1 + torch.arange(DIM)).pow(-0.7),
}


def sketches(block):
    first = CountSketch(DIM, 1, COLS, 0, block, hash="permutation")
    return [first.for_round(round) for round in range(SEEDS)]


def variances(x, block):
    """What the page says: the energy of the other groups over the number of cells in use."""
    used = COLS // block * block
    energy = x.double().square()
    group = torch.arange(DIM) // used
    own = torch.zeros(int(group[-1]) + 1, dtype=torch.float64).index_add_(0, group, energy)
    return (energy.sum() - own[group]) / used


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", INPUTS)
def test_unbiased_and_of_the_variance_that_is_proved(name, block):
    x = INPUTS[name]
    expected = variances(x, block)
    found = torch.stack([s.estimate(s.sketch(x)) - x for s in sketches(block)]).double()
    # The mean error of nine coordinates within six standard deviations: a normal tail of 2e-9 each.
    picks = torch.arange(0, DIM, 1000)
    allowed = 6 * (expected[picks] / SEEDS).sqrt() + 1e-4
    assert (found[:, picks].mean(dim=0).abs() <= allowed).all()
    # Squared errors have the mean that is proved: in all, and at each place modulo 64. Six standard
    # errors, measured from the same samples; a few parts in 10^4 for rounding.
    squares = found.square() - expected
    whole = squares[:, : DIM // 64 * 64].reshape(SEEDS, -1, 64).mean(dim=1)
    for samples in (squares.mean(dim=1, keepdim=True), whole):
        error = samples.std(dim=0) / math.sqrt(SEEDS)
        assert (samples.mean(dim=0).abs() <= 6 * error + 3e-4 * expected.max()).all()


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", INPUTS)
def test_the_norm_is_as_good_as_the_textbooks(name, block):
    """Mean |x|^2 and variance at most 2 / cols |x|^4, whatever the block: six standard errors."""
    x = INPUTS[name]
    energy = float(x.double().square().sum())
    ratios = [s.l2(s.sketch(x)) ** 2 / energy - 1 for s in sketches(block)]
    deviation = torch.tensor(ratios, dtype=torch.float64)
    bound = 2 / (COLS // block * block)
    assert abs(deviation.mean()) <= 6 * math.sqrt(bound / SEEDS)
    squares = deviation.square()
    assert squares.mean() <= bound + 6 * squares.std() / math.sqrt(SEEDS)


def test_fresh_hashes_average_out():
    """The mean of the estimates of n rounds has an n-th of the variance of one: within a tenth."""
    x = INPUTS["power law"]
    many = sketches(16)[:400]
    mean = torch.stack([s.estimate(s.sketch(x)) for s in many]).double().mean(dim=0)
    measured = (mean - x).square().mean()
    assert measured == pytest.approx(float(variances(x, 16).mean() / 400), rel=0.1)
