"""Steps and bounds of the theorems, bytes, and what the command puts together."""

import math

import pytest
import torch

from fetchsgd.quantisers.levels import Rounding, quantise
from fetchsgd.sketch.hashing import MAX_COLS
from fetchsgd.theory import (
    Certainty,
    Heaviness,
    Problem,
    contracting,
    costs,
    promised,
    requirements,
    smallest_table,
    theorem_1,
    theorem_2,
    windows,
)
from fetchsgd.theory.tables import TableSize
from fetchsgd.wire import Floats, SketchTable, encode

CIFAR = Certainty(dim=6_568_640, rounds=2400, delta=0.01)

PROBLEM = Problem(smoothness=10.0, gradient_norm=2.0, gap=3.0)


def test_theorem_1_as_printed():
    found = theorem_1(PROBLEM, tau=0.5, rounds=100, momentum=0.9)
    assert found.step == pytest.approx(0.1 / 200)
    assert found.printed == pytest.approx((4 * 10 * 3 + 4) / 10 + 2 * 1.5**2 * 4 / (0.5 * 25))
    assert theorem_1(PROBLEM, 0.5, 100, 0.0).step == pytest.approx(1 / 200)


def test_theorem_2_as_printed():
    found = theorem_2(PROBLEM, tau=0.5, rounds=1000, window=4)
    scale = 2 * math.sqrt(10)
    assert found.step == pytest.approx(1 / (scale * 100))
    assert found.printed == pytest.approx((3 * scale + 3) / 10 + scale / 100 + 32 / 10_000)
    assert theorem_2(PROBLEM, 0.5, 1000, noise=0.0).printed < found.printed


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_derived_bound_of_theorem_1_is_its_proof(momentum):
    """The inequality before the step is put in, with |e| and |u| by their recursions."""
    tau, rounds = 0.3, 400
    found = theorem_1(PROBLEM, tau, rounds, momentum)
    smoothness, norm = PROBLEM.smoothness, PROBLEM.gradient_norm
    kappa = tau / 2
    velocity = error = 0.0
    for _ in range(5000):
        velocity = momentum * velocity + norm
        error = math.sqrt(1 - kappa) * (error + found.step * velocity)
    drift = error + found.step * momentum / (1 - momentum) * velocity
    bound = (
        2 * (1 - momentum) * PROBLEM.gap / (found.step * rounds)
        + smoothness**2 * drift**2
        + smoothness * found.step * norm**2 / (1 - momentum)
    )
    # (1 - sqrt(1 - kappa)) >= kappa / 2: the proof's own way of summing is a little larger.
    assert bound <= found.derived <= 1.1 * bound


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_both_bounds_of_theorem_1_hold_on_a_quadratic(momentum):
    """Top-1 of the exact vector: some coordinate of dim always has 1/dim of the energy."""
    dim, rounds = 8, 300
    curvature = torch.linspace(0.1, 1.0, dim, dtype=torch.float64)
    w = torch.linspace(1, 2, dim, dtype=torch.float64)
    gap = float((curvature * w.square()).sum() / 2)
    found = theorem_1(Problem(1.0, 4.0, gap), 1 / dim, rounds, momentum)
    velocity, error = torch.zeros_like(w), torch.zeros_like(w)
    least = math.inf
    for _ in range(rounds):
        gradient = curvature * w
        assert gradient.norm() <= 4.0
        least = min(least, float(gradient.square().sum()))
        velocity = momentum * velocity + gradient
        error = found.step * velocity + error
        update = torch.zeros_like(w)
        update[error.abs().argmax()] = error[error.abs().argmax()]
        error, w = error - update, w - update
    assert least <= min(found.printed, found.derived)


def test_from_when_on_the_printed_bound_of_theorem_1_follows():
    def missing(tau, momentum, rounds):
        """Per G^2, of what the proof needs with norms within 1 +- tau and a contraction by tau."""
        drift = (1 + tau) / (1 - tau) * (math.sqrt(1 - tau) / tau + momentum / (2 - 2 * momentum))
        printed = 2 * (1 + tau) ** 2 / ((1 - tau) * tau**2)
        return drift**2 / rounds - printed / rounds - 0.5 / math.sqrt(rounds)

    assert theorem_1(PROBLEM, 0.05, 10, 0.9).printed_from == 1
    late = theorem_1(PROBLEM, 0.5, 10, 0.9).printed_from
    assert missing(0.5, 0.9, late) <= 0 < missing(0.5, 0.9, late - 1)


def test_the_derived_bound_of_theorem_2_is_above_the_printed_one():
    """By 2 gap for gap, L for 1 where L > 1, and the error of sums over a window."""
    tau = 0.1
    for window in (1, 5):
        found = theorem_2(PROBLEM, tau, 10**6, window)
        assert found.derived > found.printed
    wide = theorem_2(PROBLEM, tau, 10**6, 5, cols=10**9)
    assert wide.derived < theorem_2(PROBLEM, tau, 10**6, 5, cols=10**5).derived
    scale = 2 * math.sqrt(10)
    estimates = (1 - tau**2) * 125 / (tau**2 * 10**9)
    expected = (6 * scale + 20 * (1 + estimates)) / 100 + scale / 10**4 + 500 / 10**8
    assert wide.derived == pytest.approx(expected)


@pytest.mark.parametrize("theorem", [1, 2])
def test_the_first_term_leads_from_there_on(theorem):
    problem = Problem(1.0, 5.0, 0.01)
    if theorem == 1:
        least = theorem_1(problem, 0.2, 10, 0.0).leading_from
        first = (0.04 + 25) / math.sqrt(least)
        others = [theorem_1(problem, 0.2, least, 0.0).printed - first]
    else:
        least = theorem_2(problem, 0.2, 10, 4).leading_from
        first = (5 * 0.01 + 3.6) / least ** (1 / 3)
        others = [5 / least ** (2 / 3), 32 / least ** (4 / 3)]
    assert max(others) <= first * (1 + 1e-9)
    assert least > 1


# Bytes.


@pytest.mark.parametrize("bits", [32, 16, 8, 6, 4, 3, 2])
def test_upload_bytes_are_those_of_messages(bits):
    """Exactly for floats; the entropy coder takes what is left."""
    cells = torch.randn(5 * 700, generator=torch.Generator().manual_seed(0))
    if bits >= 16:
        content = Floats(cells if bits == 32 else cells.bfloat16())
    else:
        content = quantise(cells, bits, Rounding(1))
    sent = len(encode(SketchTable(10**5, 5, 700, 1, 0, content)))
    found = costs(TableSize(5, 700, 0.1, 0.1), dim=10**5, kept=2, bits=bits)
    assert found.compression == pytest.approx(4 * 10**5 / found.upload_bytes)
    assert found.server_bytes == 2 * 4 * 3500
    if bits >= 16:
        assert found.upload_bytes == sent
    else:
        assert sent <= found.upload_bytes < 2 * sent


def test_windows_keep_all_suffixes_or_some():
    assert [windows(n).every for n in (1, 2, 5, 8, 9)] == [1, 2, 5, 8, 9]
    assert [windows(n).pruned for n in (1, 2, 5, 8, 9)] == [1, 2, 5, 6, 8]


def test_requirements_begin_with_the_theorems_own():
    first, *others = requirements(Heaviness(1, 0.05), CIFAR, kept=2, k=10)
    assert first.table == smallest_table(Heaviness(1, 0.05).error, CIFAR)
    assert [each.what for each in others][1:] == [
        "top-10 removes tau/2 of |q|²",
        "norms within 1 ± tau",
    ]
    assert len(requirements(Heaviness(2, 0.05), CIFAR, kept=1)) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Heaviness(3, 0.1), "theorem must be 1 or 2, got 3"),
        (lambda: Heaviness(1, 1.0), "tau must be at least 1e-09 and below 1, got 1.0"),
        (lambda: Heaviness(1, math.nan), "tau must be .* got nan"),
        (lambda: Certainty(0, 1, 0.1), "dim must be from 1 to .* got 0"),
        (lambda: Certainty(1, 0, 0.1), "rounds must be from 1 to .* got 0"),
        (lambda: Certainty(1, 1, 0.0), "delta must be above 0 and below 1, got 0.0"),
        (lambda: smallest_table(0.0, CIFAR), "error must be a share of the norm above 0, got 0.0"),
        (lambda: promised(0, 5, CIFAR), "rows must be from 1 to 10000, got 0"),
        (lambda: promised(1, MAX_COLS + 1, CIFAR), "cols must be from 1 to"),
        (lambda: contracting(0.1, 0), "k must be from 1 to .* got 0"),
        (lambda: Problem(0.0, 1.0, 1.0), r"smoothness must be above 0 and at most 1e\+50, got 0"),
        (lambda: Problem(1.0, 1.0, -1.0), r"gap must be at least 0 and at most 1e\+50, got -1"),
        (lambda: theorem_1(PROBLEM, 0.1, 10, 1.0), "momentum must be at least 0 and below 1"),
        (lambda: theorem_2(PROBLEM, 0.1, 10, 11), "window must be from 1 to 10, got 11"),
        (lambda: theorem_2(PROBLEM, 0.1, 10, noise=2.0), "noise must be from 0 to 1, got 2.0"),
        (lambda: costs(TableSize(1, 1, 1, 1), 1, 1, 5), "bits must be one of 32, 16, 8, .* got 5"),
        (lambda: windows(0), "window must be from 1 to .* got 0"),
    ],
)
def test_mistakes_get_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("tau", [1e-9, 0.5, 1 - 1e-12])
@pytest.mark.parametrize("theorem", [1, 2])
def test_extremes_are_finite(theorem, tau):
    certainty = Certainty(2**48, 10**15, 1e-30, 10**6)
    for each in requirements(Heaviness(theorem, tau), certainty, kept=2, k=10**9):
        assert 0 <= each.table.failure <= certainty.delta * (1 + 1e-9)
        assert each.costs.compression > 0
    hard = Problem(1e50, 1e50, 1e50)
    found = theorem_1(hard, tau, 10**15, 0.999) if theorem == 1 else theorem_2(hard, tau, 1)
    assert all(math.isfinite(value) for value in (found.step, found.printed, found.derived))
