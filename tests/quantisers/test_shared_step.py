"""One step for all clients of a round: the size of their numbers is learned, and hard to move."""

import math

import pytest
import torch
from awkward import normal

from fetchsgd.errors import UserError
from fetchsgd.quantisers import SharedStep
from fetchsgd.quantisers.shared_step import FINER, FORGETS, next_size, typical_size
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run
from fetchsgd.wire import DenseVector, encode

KEY = 77
COUNT = 4000


def clients(n):
    return torch.arange(n)


def size_of(rows):
    return rows.double().abs().mean(dim=1)


def unequal(n=40, count=COUNT):
    """Clients whose numbers differ by up to a hundred times."""
    return normal(n, count) * torch.logspace(-1, 1, n)[:, None]


def test_the_size_of_numbers_is_read_off_their_levels():
    """Each client's is right on average; 40 of 4,000 numbers, 1 in 100 sent, are within 10 %."""
    rows = unequal()
    true = float(size_of(rows).mean())
    rounded = SharedStep(0.01).for_size(true).round_rows(rows, KEY, clients(40))
    assert float(rounded.sizes().mean()) == pytest.approx(true, rel=0.1)
    assert float(rounded.levels.abs().double().mean()) == pytest.approx(0.01, rel=0.1)
    for index in (0, 39):
        assert rounded.row(index).size == float(rounded.sizes()[index])


def test_all_clients_have_one_step_and_numbers_are_right_on_average():
    rows = unequal(6, 200)
    quantiser = SharedStep(0.25).for_size(float(size_of(rows).mean()))
    found = []
    for key in range(1500):
        rounded = quantiser.round_rows(rows, key, clients(6))
        assert len(rounded.steps.unique()) == 1
        found.append(rounded.dequantise())
    off = (torch.stack(found).mean(dim=0) - rows) / rounded.steps[0]
    part = (rows / rounded.steps[0]).remainder(1)
    deviation = (part * (1 - part) / len(found)).sqrt()
    # Of 1,200 means none is 6 deviations off. Those that are sent rarely are counts: 6 more.
    assert (off.abs() <= 6 * deviation + 6 / len(found)).all()


def test_before_the_first_round_a_client_goes_by_its_own_numbers():
    rows = unequal()
    for nothing in (0.0, math.nan, math.inf):
        rounded = SharedStep(0.01).for_size(nothing).round_rows(rows, KEY, clients(40))
        own = SharedStep(0.01).round_rows(rows, KEY, clients(40))
        assert torch.equal(rounded.steps, own.steps)
        assert torch.equal(rounded.levels, own.levels)
    # Normal numbers have nearly the density that was asked for.
    assert float(own.levels.abs().double().mean()) == pytest.approx(0.01, rel=0.1)


def test_a_client_far_larger_than_the_others_stays_within_bounds():
    rows = unequal()
    rows[5] *= 1e6
    shared = SharedStep(0.01)
    rounded = shared.for_size(0.01).round_rows(rows, KEY, clients(40))
    own = shared.round_rows(rows, KEY, clients(40))
    assert rounded.steps[5] == own.steps[5] / FINER
    assert rounded.row(5).section_bytes() <= shared.most_bytes(COUNT)


def test_what_has_diverged_stays_visible_and_teaches_nothing():
    rows = unequal()
    rows[3, 7] = math.nan
    rounded = SharedStep().for_size(1.0).round_rows(rows, KEY, clients(40))
    assert rounded.dequantise()[3].isnan().all()
    sizes = rounded.sizes()
    assert typical_size(sizes).isfinite()
    sizes[:] = math.nan
    before = torch.tensor(0.5, dtype=torch.float64)
    assert next_size(before, typical_size(sizes)) == before
    assert next_size(None, typical_size(sizes)) == 0


@pytest.mark.parametrize("lie", [0.0, 1e30, math.inf, math.nan])
def test_a_liar_moves_the_size_by_little(lie):
    """It may move the median by one place, and counts for at most four medians itself."""
    sizes = size_of(unequal(40))
    for liar in (7, 35):
        lied = sizes.clone()
        lied[liar] = lie
        lower, upper = sizes.sort().values[[18, 20]]
        found, most = typical_size(lied), 4 * upper
        assert found <= sizes.clamp(max=4 * upper).mean() + most / 40
        assert found >= sizes.clamp(max=4 * lower).mean() - most / 40
        assert found <= most


def test_typical_size_is_the_mean_where_nobody_stands_out():
    sizes = torch.tensor([1.0, 2.0, 3.0, 2.5], dtype=torch.float64)
    assert typical_size(sizes) == sizes.mean()
    sizes[3] = 100.0
    assert typical_size(sizes) == pytest.approx((1 + 2 + 3 + 8) / 4)


def test_what_is_known_moves_slowly():
    seen = torch.tensor(2.0, dtype=torch.float64)
    first = next_size(None, seen)
    assert first == 2.0
    assert next_size(first, 3 * seen) == pytest.approx(2 + FORGETS * 4)


@pytest.mark.parametrize("density", [0.0, -1.0, 1e-6, 101.0, math.nan])
def test_a_density_out_of_range_gets_a_sentence(density):
    with pytest.raises(ValueError, match="density must be from 1.5e-05 to 100, got"):
        SharedStep(density)
    if density > 0:
        with pytest.raises(UserError, match="density must be from"):
            make(f"density={density}")


def make(*sets):
    given = {"task": {"name": "tinytask:tiny"}, "method": {"name": "uncompressed"}}
    return Run(resolve(given, ("quantiser=shared_step", *sets)))


def test_a_run_learns_the_size_from_what_is_sent():
    run = make("density=1.0", "epochs=1")
    start, size = run.start(), None
    assert start.size is None
    for training, merged in run.train(start):
        assert len(merged.sizes) == len(merged.clients)
        size = next_size(size, typical_size(merged.sizes))
        assert torch.equal(training.size, size)
    assert 0 < float(size) < math.inf


def test_small_rows_send_little_and_what_is_zero_nothing():
    cells = torch.randn(4, 5000, generator=torch.Generator().manual_seed(5))
    cells[2] *= 1e-3
    cells[3] = 0
    rows = SharedStep(1.0).for_size(0.5).round_rows(cells, 7, torch.arange(4))
    assert rows.steps.tolist() == [0.5] * 4
    sizes = rows.section_bytes()
    assert sizes[0] > 5 * sizes[2] > 5 * sizes[3]


def test_a_cap_holds_for_clients_that_are_larger_than_others():
    cells = torch.randn(2, 20_000, generator=torch.Generator().manual_seed(5))
    cells[1] *= 100
    rows = SharedStep(0.4, 2000).for_size(0.8).round_rows(cells, 7, torch.arange(2))
    assert rows.steps[1] > 10 * rows.steps[0]
    for i in range(2):
        assert 1800 <= len(encode(DenseVector(rows.row(i)))) <= 2000


def test_the_largest_density_rounds():
    rows = torch.randn(2, 5000, generator=torch.Generator().manual_seed(0))
    rounded = SharedStep(100.0).round_rows(rows, 1, torch.arange(2)).dequantise()
    assert float((rounded - rows).norm() / rows.norm()) < 0.005


def test_one_number_may_hold_all_that_a_large_client_has():
    """Its step is the finest that a client may take, so its levels are the largest there are."""
    rows = torch.zeros(1, 5000)
    rows[0, 17] = -7.0
    for density in (0.5, 1.0, 100.0):
        rounded = SharedStep(density).for_size(1e-9).round_rows(rows, KEY, clients(1))
        step = float(rounded.steps[0])
        assert abs(float(rounded.dequantise()[0, 17]) + 7) <= step * 1.0001
