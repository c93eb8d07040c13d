"""Sizes, promises and bounds of the theorems: against oracles, and against real sketches.

Simulations fix their seeds. A promise that holds fails in far fewer tables than it allows, since
Chebyshev's inequality is seldom tight: for "at most delta" to fail by chance is as unlikely as a
binomial with mean below delta * TABLES exceeding it.
"""

import math
from fractions import Fraction

import pytest
import torch

from fetchsgd import CountSketch
from fetchsgd.theory import (
    Certainty,
    Contraction,
    Heaviness,
    contracting,
    hoeffding_table,
    norm_table,
    promise,
    promised,
    risk,
    smallest_table,
)
from fetchsgd.theory.medians import half_fail, row_chance
from fetchsgd.theory.tables import TableSize

CIFAR = Certainty(dim=6_568_640, rounds=2400, delta=0.01)
SMALL = Certainty(dim=2000, rounds=3, delta=0.2)
TABLES = 60


def exact_tail(rows, chance):
    p = Fraction(chance)
    half = -(-rows // 2)
    return sum(math.comb(rows, j) * p**j * (1 - p) ** (rows - j) for j in range(half, rows + 1))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 10, 31, 200])
@pytest.mark.parametrize("chance", [1e-9, 0.01, 0.2, 0.5])
def test_the_tail_is_the_binomial_one(rows, chance):
    assert half_fail(rows, chance) == pytest.approx(float(exact_tail(rows, chance)), rel=1e-9)


@pytest.mark.parametrize("rows", [1, 2, 7, 59])
@pytest.mark.parametrize("chance", [1e-14, 1e-3, 0.3])
def test_row_chance_inverts_the_tail(rows, chance):
    found = row_chance(rows, chance)
    assert half_fail(rows, found) <= chance
    assert half_fail(rows, found * (1 + 1e-9)) > chance


@pytest.mark.parametrize("certainty", [CIFAR, SMALL, Certainty(1, 1, 0.9)])
@pytest.mark.parametrize("error", [0.4, 0.1, 0.003])
def test_no_table_with_fewer_cells_has_the_promise(error, certainty):
    best = smallest_table(error, certainty)
    assert best.failure <= certainty.delta
    for rows in range(1, 400):
        cols = (best.cells - 1) // rows
        if cols and rows * cols < best.cells:
            assert risk(rows, cols, error, certainty).failure > certainty.delta


def test_hoeffding_is_the_closed_form_and_takes_more():
    error = Heaviness(1, 0.05).error
    table = hoeffding_table(error, CIFAR)
    assert table.cols == math.ceil(3 / error**2)
    least = 4.5 * math.log(2 * CIFAR.dim * CIFAR.rounds / CIFAR.delta)
    assert least <= table.rows < least + 2
    assert table.rows % 2 == 1
    assert table.failure <= 2 * CIFAR.estimates * math.exp(-2 * table.rows / 9) <= CIFAR.delta
    assert 1 < table.cells / smallest_table(error, CIFAR).cells < 2


def test_sizes_grow_as_the_theorems_say():
    """1/tau in Theorem 1, 1/tau^2 in Theorem 2, log of dim, rounds, window and 1/delta."""
    sizes = {
        (theorem, tau): smallest_table(Heaviness(theorem, tau).error, CIFAR).cells
        for theorem in (1, 2)
        for tau in (0.001, 0.01)
    }
    assert sizes[1, 0.001] / sizes[1, 0.01] == pytest.approx(10, rel=0.01)
    assert sizes[2, 0.001] / sizes[2, 0.01] == pytest.approx(100, rel=0.01)
    error = Heaviness(1, 0.01).error
    logs = [
        smallest_table(error, certainty).cells / math.log(2 / certainty.chance)
        for certainty in (CIFAR, Certainty(10**9, 10**6, 1e-6), Certainty(10**6, 100, 0.1, 50))
    ]
    assert max(logs) / min(logs) < 1.1


@pytest.mark.parametrize("theorem", [1, 2])
@pytest.mark.parametrize("rows", [5, 20, 51])
def test_the_reverse_leads_back(theorem, rows):
    given = promise(rows, 400_000, CIFAR, theorem, kept=2)
    assert risk(rows, 400_000, given.table.error, CIFAR).failure == pytest.approx(0.01)
    assert given.finds.error == pytest.approx(given.table.error)
    needed = smallest_table(given.finds.error, CIFAR)
    assert needed.cells <= given.table.rows * given.table.cols + rows
    best = promised(needed.rows, needed.cols, CIFAR)
    assert best.error <= needed.error
    asked = promise(rows, 400_000, CIFAR, theorem, kept=2, tau=given.finds.tau / 2).asked
    assert asked.failure > 0.01


def test_one_row_promises_nothing():
    """All experiments of the paper have one row."""
    assert promise(1, 650_000, CIFAR, 1, kept=2).finds is None
    assert risk(1, 650_000, Heaviness(1, 0.5).error, CIFAR).failure == 1


# Against real sketches.


def heavy_and_flat(tau, index=7):
    """One coordinate with exactly tau of the energy, all others alike."""
    x = torch.ones(SMALL.dim)
    x[index] = math.sqrt(tau / (1 - tau) * (SMALL.dim - 1))
    return x


def heavy_and_few(tau, few=40):
    """The same, with the rest on few coordinates, where collisions are rare and large."""
    x = torch.zeros(SMALL.dim)
    x[torch.arange(few) * 37 + 20] = 1.0
    x[7] = math.sqrt(tau / (1 - tau) * few)
    return x


def heavy_and_gaussian(tau):
    x = torch.randn(SMALL.dim, generator=torch.Generator().manual_seed(1))
    x[7] = 0
    x[7] = math.sqrt(tau / (1 - tau)) * float(x.norm())
    return x


INPUTS = [heavy_and_flat, heavy_and_few, heavy_and_gaussian]


def failures(table, inputs, block=1):
    """The share of sketches in which some estimate of some input is off by error * |x|."""
    failed = 0
    for seed in range(TABLES):
        sketch = CountSketch(SMALL.dim, table.rows, table.cols, seed, block)
        off = [
            float((sketch.estimate(sketch.sketch(x)) - x).abs().max() / x.norm()) for x in inputs
        ]
        failed += max(off) >= table.error
    return failed / TABLES


@pytest.mark.parametrize("theorem", [1, 2])
@pytest.mark.parametrize("block", [1, 8])
def test_the_smallest_table_keeps_its_promise_and_a_far_smaller_one_does_not(theorem, block):
    heaviness = Heaviness(theorem, 0.2)
    inputs = [make(heaviness.amplitude**2) for make in INPUTS]  # a round each
    table = smallest_table(heaviness.error, SMALL)
    assert failures(table, inputs, block) <= SMALL.delta
    poor = TableSize(3, max(table.cols // 10, 8), table.error, 1.0)
    assert risk(poor.rows, poor.cols, poor.error, SMALL).failure == 1
    assert failures(poor, inputs, block) > 0.5


@pytest.mark.parametrize("make", INPUTS)
def test_a_heavy_coordinate_stands_out_from_zeros(make):
    """Above half of its own least size, where no zero comes."""
    heaviness = Heaviness(1, 0.2)
    table = smallest_table(heaviness.error, SMALL)
    x = make(0.2)
    found = 0
    for seed in range(TABLES):
        sketch = CountSketch(SMALL.dim, table.rows, table.cols, seed, 1)
        estimate = sketch.estimate(sketch.sketch(x)).abs() / x.norm()
        above = estimate > heaviness.amplitude / 2
        found += bool(above[7]) and not above[x == 0].any()
    assert found / TABLES >= 1 - SMALL.delta


@pytest.mark.parametrize(("rows", "share"), [(1, 0.5), (5, 0.5), (9, 0.3)])
def test_the_chance_of_one_estimate_is_nearly_reached(rows, share):
    """By 1 / error^2 equal coordinates: a single one of them in the cell is just too much.

    Over 80 sketches and 2000 coordinates the measured rate has a standard error of a few percent.
    """
    few, cols = 16, 80
    x = torch.zeros(SMALL.dim)
    x[torch.arange(few) * 100] = 1.0
    rate = 0.0
    for seed in range(80):
        sketch = CountSketch(SMALL.dim, rows, cols, seed, 1)
        off = (sketch.estimate(sketch.sketch(x)) - x).abs()
        rate += float((off >= 1 - 1e-4).float().mean()) / 80
    bound = risk(rows, cols, 1 / math.sqrt(few), Certainty(1, 1, 0.5)).failure
    assert share * bound < rate <= bound


def norm_failures(table):
    x, failed = heavy_and_gaussian(0.01), 0
    for seed in range(TABLES):
        sketch = CountSketch(SMALL.dim, table.rows, table.cols, seed, 1)
        failed += abs(sketch.l2(sketch.sketch(x)) / float(x.norm()) - 1) >= table.error
    return failed / TABLES


def test_norms_are_within_their_promise():
    table = norm_table(0.1, SMALL)
    assert norm_failures(table) <= SMALL.delta
    assert norm_failures(TableSize(1, table.cols // 50, table.error, 1.0)) > 0.3
    blocks = norm_table(0.1, SMALL, block=8)
    assert blocks.cells == pytest.approx(8 * table.cells, rel=0.01)


def test_the_norms_of_theorem_1_take_more_than_its_size():
    """1/tau^2, where the theorem has 1/tau: norms cost more than heavy hitters for small tau."""
    cells = [norm_table(tau, CIFAR).cells for tau in (0.001, 0.01)]
    assert cells[0] / cells[1] == pytest.approx(100, rel=0.02)
    assert cells[0] > 10 * smallest_table(Heaviness(1, 0.001).error, CIFAR).cells


# Contraction.


def left_after_top_k(q, estimate, k):
    top = estimate.abs().topk(k).indices
    rest = q.clone()
    rest[top] -= estimate[top]
    return float(rest.square().sum() / q.square().sum())


@pytest.mark.parametrize("k", [1, 2, 7, 30])
@pytest.mark.parametrize("scale", [0.5, 1.0, 1.5])
def test_top_k_contracts_whatever_the_errors_are(k, scale, generator):
    tau = 0.1
    error = scale * contracting(tau, k).error
    sure = Contraction(tau, k, error).removed
    for trial in range(200):
        q = torch.randn(60, generator=generator, dtype=torch.float64)
        q[trial % 50 + 1 :] *= trial % 3 / 2  # few others, or small ones, or many
        q[0] = 0
        q[0] = math.sqrt(tau / (1 - tau)) * (q.norm() if q.any() else 1.0)
        q /= q.norm()
        off = error * (2 * torch.rand(60, generator=generator, dtype=torch.float64) - 1)
        if trial % 2:
            off = error * off.sign()
            off[0] = -error
        assert left_after_top_k(q, q + off, k) <= 1 - sure + 1e-9


def test_the_contraction_is_the_best_there_is():
    """Reached by a rival that looks as large, and by zeros that look as large as the error."""
    for k in (1, 9):
        found = contracting(0.1, k)
        assert found.removed == pytest.approx(0.05)
        a, error = math.sqrt(0.1), found.error
        q = torch.zeros(1000, dtype=torch.float64)
        q[0] = a
        off = torch.zeros_like(q)
        if k == 1:
            q[1], off[0], off[1] = a - 2 * error + 1e-9, -error, error
        else:
            off[:k] = error
        rest = math.sqrt(1 - float(q.square().sum()))
        q[100:] = rest / 30  # far below the error
        assert left_after_top_k(q, q + off, k) == pytest.approx(1 - 0.05, abs=1e-6)


def test_a_sketch_for_contraction_contracts():
    """Every one of 20, where one in five might fail."""
    tau, k = 0.2, 3
    table = smallest_table(contracting(tau, k).error, SMALL)
    for seed in range(20):
        x = INPUTS[seed % 3](tau)
        sketch = CountSketch(SMALL.dim, table.rows, table.cols, seed, 1)
        rest = x - sketch.top_k(sketch.sketch(x), k).to_dense()
        assert float(rest.square().sum() / x.square().sum()) <= 1 - tau / 2
