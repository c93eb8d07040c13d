"""The public step: fine enough, safe, and found again after every jump."""

import json
import math
from pathlib import Path

import pytest
import torch

from fetchsgd.sums import Modular
from fetchsgd.sums.layout import Layout
from fetchsgd.sums.public_step import look, wrap_chance

CLIENTS, COUNT = 10, 2048
RESULTS = Path(__file__).parents[2] / "results" / "digits-sums.jsonl"


def gradients(size, round, count=COUNT, clients=CLIENTS):
    generator = torch.Generator().manual_seed(round)
    return size * torch.randn(clients, count, generator=generator)


def run(settings, sizes, cohorts=None):
    """Rounds in which clients' numbers have these sizes: step, wraps, error and use of each.

    cohorts: how many of the clients are there.
    """
    found, step = [], None
    for round, size in enumerate(sizes):
        n = CLIENTS if cohorts is None else cohorts[round]
        rows = gradients(size, round)[:n]
        quantiser = settings.for_round(round, step, CLIENTS)
        sent = quantiser.round_rows(rows, 77 + round, torch.arange(n))
        opened = quantiser.open(sent.sum(), n, Layout.of(COUNT), n)
        error = float((opened.mean - rows.mean(dim=0)).norm() / rows.mean(dim=0).norm())
        found.append((float(quantiser.step), int(opened.wraps), error, bool(opened.seen.usable)))
        step = opened.seen.next_step
    return found


def share(rounds):
    """Of cells that wrapped."""
    return sum(wraps for _, wraps, *_ in rounds) / (len(rounds) * COUNT)


@pytest.mark.parametrize("bits", [4, 6, 8, 10, 16])
def test_a_step_is_found_and_kept(bits):
    found = run(Modular(sum_bits=bits), [1e-3] * 45)
    settled = found[30:]
    assert all(usable for *_, usable in settled)
    assert share(settled) <= 1e-3
    errors = [error for _, _, error, _ in settled]
    assert max(errors) < {4: 3.0, 6: 0.8, 8: 0.2, 10: 0.12, 16: 0.12}[bits]


@pytest.mark.parametrize("factor", [10, 100, 0.1, 0.01])
@pytest.mark.parametrize("bits", [4, 8])
def test_only_the_jump_itself_wraps(bits, factor):
    """Sums of another size, for good: wraps stay within what is asked but in the round itself."""
    found = run(Modular(sum_bits=bits), [1e-3] * 45 + [1e-3 * factor] * 45)
    *_, usable = found[49]
    assert usable  # at most four rounds are lost
    assert share(found[30:45]) <= 1e-3
    assert share(found[49:]) <= 1e-3
    before, after = found[44], found[-1]
    assert after[0] == pytest.approx(before[0] * factor, rel=0.3)
    assert after[2] < 1.5 * before[2] + 0.02


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("few", [1, 4, 6])
def test_a_small_cohort_does_not_make_the_next_one_wrap(bits, few):
    """The last cohort of an epoch is what is left over, and its sum is as much smaller."""
    cohorts = ([CLIENTS] * 7 + [few]) * 6
    found = run(Modular(sum_bits=bits), [1e-3] * len(cohorts), cohorts)
    assert share(found[16:]) <= 1e-3
    assert all(usable for *_, usable in found[8:])
    steps = [step for step, *_ in found[32:]]
    assert max(steps) < 1.8 * min(steps)


def test_sums_that_jump_up_and_down_wrap_no_more_than_asked():
    """By a factor of up to three either way, as digits' do."""
    generator = torch.Generator().manual_seed(3)
    sizes = 1e-3 * 3 ** (2 * torch.rand(80, generator=generator) - 1)
    found = run(Modular(sum_bits=8), sizes.tolist())
    assert share(found[15:]) <= 1e-3


def test_runs_on_digits_wrapped_no_more_than_asked():
    """As results/digits-sums.jsonl has them, counted in simulation."""
    lines = RESULTS.read_text().splitlines()
    wraps = [json.loads(line)["sum_wraps"] for line in lines]
    assert len(wraps) >= 24
    assert max(wraps) <= 1e-3


@pytest.mark.parametrize("first_step", [1e-9, 1e4])
def test_begins_from_any_step(first_step):
    found = run(Modular(sum_bits=8, first_step=first_step), [1e-3] * 45)
    assert sum(not usable for *_, usable in found) <= 8
    expected = run(Modular(sum_bits=8), [1e-3] * 45)[-1][0]
    assert found[-1][0] == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize("first_step", [1e-9, 1e4])
def test_a_sum_that_says_nothing_is_not_used(first_step):
    """One step is so fine that sums wrap all over, one so coarse that they are but rounding."""
    quantiser = Modular(sum_bits=8, first_step=first_step).for_round(0, None, CLIENTS)
    sent = quantiser.round_rows(gradients(1e-3, 0), 77, torch.arange(CLIENTS))
    opened = quantiser.open(sent.sum(), CLIENTS, Layout.of(COUNT))
    assert not opened.seen.usable
    assert not opened.mean.any()


def test_from_nothing_at_all_a_step_moves_by_so_much_and_no_more():
    quantiser = Modular(sum_bits=8).for_round(0, 1.0, CLIENTS)
    opened = quantiser.open(torch.zeros(COUNT, dtype=torch.int64), CLIENTS, Layout.of(COUNT))
    assert float(opened.seen.next_step) == 1 / 256


def test_sums_of_fewer_are_taken_for_as_much_larger():
    """Those of more than half; of fewer than that one learns only that a step is too fine."""
    quantiser = Modular(sum_bits=8).for_round(5, 1.0, CLIENTS)
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(COUNT, generator=generator)

    def after(deviation, arrived):
        levels = (deviation * normal).round().long()
        return float(quantiser.open(levels, arrived, Layout.of(COUNT), arrived).seen.next_step)

    assert after(9, CLIENTS) < 1
    assert after(9, 4) == 1
    assert 1 < after(40, CLIENTS) < after(40, 8) < after(40, 6)


def test_all_zeros_break_nothing():
    found = run(Modular(sum_bits=8), [0.0] * 10 + [1e-3] * 40)
    assert all(math.isfinite(step) for step, *_ in found)
    assert found[-1][2] < 0.2


def test_a_given_step_stays():
    found = run(Modular(sum_bits=8, sum_step=1e-4), [1e-3, 1.0, 1e-3])
    assert [step for step, *_ in found] == [1e-4] * 3
    assert all(usable for *_, usable in found)


def test_only_the_sum_is_looked_at():
    """Clients that differ, with the same sum modulo 2^b, give the same step."""
    layout = Layout.of(COUNT)
    levels = torch.randint(-20, 20, (COUNT,), generator=torch.Generator().manual_seed(0))
    quantiser = Modular(sum_bits=8).for_round(5, 0.1, CLIENTS)
    one, other = (quantiser.open(sum, CLIENTS, layout) for sum in (levels, levels + 256))
    assert torch.equal(one.mean, other.mean)
    assert one.seen == other.seen
    assert (int(one.wraps), int(other.wraps)) == (0, COUNT)


def test_the_estimate_of_wraps_is_right_for_normal_cells():
    layout = Layout.of(1 << 20)
    generator = torch.Generator().manual_seed(0)
    levels = (40 * torch.randn(layout.cells, generator=generator)).round().long()
    quantiser = Modular(sum_bits=8).for_round(5, 0.1, CLIENTS)
    step = torch.tensor(0.1, dtype=torch.float64)
    seen = look(step, quantiser.centred(levels), layout, 8, 1e-4, CLIENTS)
    share = float((levels != quantiser.centred(levels)).double().mean())
    assert float(seen.wrap_probability) == pytest.approx(share, rel=0.15)


def test_wrap_chance_is_the_normal_tail():
    deviation = torch.tensor([1.0, 0.0], dtype=torch.float64)
    got = wrap_chance(1.959963984540054, deviation)
    assert float(got[0]) == pytest.approx(0.05)
    assert float(got[1]) == 0
