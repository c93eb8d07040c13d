"""The laws of one step per message."""

import math

import numpy as np
import pytest
import torch
from awkward import awkward, normal
from rows_to_send import KINDS, numbers
from waiting import nothing_waits
from wire.messages import assert_predicted, same

from fetchsgd.quantisers import QUANTISERS, SharedStep, Step
from fetchsgd.quantisers.kernels import reference
from fetchsgd.quantisers.step import most_entropy
from fetchsgd.quantisers.steps import rms_steps, round_to_steps
from fetchsgd.wire import DenseVector, encode
from fetchsgd.wire.sizes import HEADER_BYTES

KEY = 0x1234_5678_9ABC_DEF0
CLIENTS = torch.tensor([4, 99, (1 << 62) + 5])


class TestSteps:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("size", [1.0, 1e-20, 1e30])
    def test_a_step_is_tau_times_the_rms(self, kind, size):
        for count in (1, 100, 5000, 20_000):
            cells = numbers(kind, 3, count) * size
            if not cells.any():
                continue
            rms = cells.double().square().mean(dim=1).sqrt()
            steps = rms_steps(cells, 2.5).double()
            torch.testing.assert_close(steps, 2.5 * rms, rtol=2**-8, atol=0)
            assert torch.equal(steps.bfloat16().double(), steps)

    def test_order_and_company_do_not_matter(self):
        cells = normal(4, 4096) ** 3
        steps = rms_steps(cells, 8.0)
        assert torch.equal(rms_steps(cells[:, torch.randperm(4096)], 8.0), steps)
        assert torch.equal(rms_steps(cells[2:3], 8.0), steps[2:3])

    @pytest.mark.usefixtures("restore_threads")
    def test_threads_change_no_bit(self):
        cells, results = normal(2, 300_001), []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            rows = Step(0.5).round_rows(cells, KEY, CLIENTS[:2])
            total = rows.weighted_sum(torch.tensor([0.3, -0.7]))
            results.append((rows.steps, rows.levels, total, rows.section_bytes()))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))

    def test_the_ends_of_the_range(self):
        cells = torch.tensor([[0.0, -0.0], [1e-45, 0.0], [2.0**-120, 0.0], [3.4e38, -3.4e38]])
        steps = rms_steps(cells, 8.0)
        assert steps[:3].tolist() == [0.0, 0.0, 0.0]
        assert steps[3] == torch.finfo(torch.bfloat16).max
        rows = Step(8.0).round_rows(cells, KEY, torch.arange(4))
        assert rows.dequantise().isfinite().all()

    def test_what_has_diverged_stays_visible_in_its_own_row(self):
        cells = normal(4, 600)
        cells[1, 7], cells[2, 500] = math.nan, -math.inf
        rows = Step().round_rows(cells, KEY, torch.arange(4))
        assert rows.dequantise()[1:3].isnan().all()
        assert rows.dequantise()[[0, 3]].isfinite().all()
        assert rows.weighted_sum(torch.ones(4)).isnan().all()
        assert rows.section_bytes().isfinite().all()
        with pytest.raises(ValueError, match="a step must be finite and not negative, got nan"):
            encode(DenseVector(rows.row(1)))
        capped = Step(8.0, 1000).round_rows(cells, KEY, torch.arange(4))
        assert capped.dequantise()[1:3].isnan().all()
        assert capped.dequantise()[[0, 3]].isfinite().all()


class TestLevels:
    @pytest.mark.parametrize("tau", [0.01, 1.0, 8.0, 100.0])
    @pytest.mark.parametrize("kind", KINDS)
    def test_error_is_below_a_step(self, kind, tau):
        cells = numbers(kind, 3, 5000)
        rows = Step(tau).round_rows(cells, KEY, CLIENTS)
        off = (rows.dequantise() - cells).abs()
        assert (off <= rows.steps[:, None] * 1.0001 + cells.abs() * 1e-6).all()
        assert (rows.dequantise()[cells == 0] == 0).all()

    def test_one_number_may_hold_all_of_the_length(self):
        for count in (1, 10_000, 300_000):
            cells = torch.zeros(1, count)
            cells[0, count // 2] = -7.0
            for tau in (0.01, 1.0, 2.0, 3.0):
                got = Step(tau).round_rows(cells, KEY, CLIENTS[:1])
                step = float(got.steps[0])
                assert abs(float(got.dequantise()[0, count // 2]) + 7) <= step * 1.0001

    def test_unbiased(self):
        """Hoeffding: a correct program fails for one key in 10^9, whatever the cells are."""
        draws, count = 4000, 200
        cells = torch.cat([normal(100), normal(100) ** 5 * 0.01])
        for tau in (0.3, 8.0):
            rows = Step(tau).round_rows(cells.expand(draws, count), KEY, torch.arange(draws))
            # Errors in steps: independent, each in an interval of length 1.
            error = rows.levels.double() - cells.double() / rows.steps[0].double()
            bound = lambda n: math.sqrt(math.log(2 * 2 * (count + 2) * 1e9) / (2 * n))
            assert (error.mean(dim=0).abs() < bound(draws)).all()
            assert abs(error.mean()) < bound(draws * count)
            assert abs((error * cells.sign()).mean()) < bound(draws * count)

    def test_small_numbers_are_not_lost(self):
        """A number of 2^-20 steps comes through once in 2^20 draws; off by 6 deviations at most."""
        cells = torch.full((8, 1 << 20), 2.0**-20)
        rows = round_to_steps(cells, torch.ones(8), KEY, torch.arange(8))
        assert abs(int(rows.levels.sum()) - 8) <= 6 * 8**0.5
        assert rows.levels.sum() > 0

    def test_the_same_words_as_other_quantisers(self):
        cells = torch.full((1, 300), 0.25)
        rows = round_to_steps(cells, torch.ones(1), KEY, CLIENTS[:1])
        words = reference.random_words(CLIENTS[:1], 2, KEY).flatten()[:300]
        assert torch.equal(rows.levels[0].bool(), words >= 3 << 30)

    def test_other_keys_and_clients_round_otherwise(self):
        row = normal(1, 700)
        drawn = [
            Step(2.0).round_rows(row, key, torch.tensor([client])).levels
            for key, client in ((1, 1), (2, 1), (1, 2))
        ]
        assert not torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])

    def test_public_steps(self):
        """All clients on one grid: sums of levels are levels of sums."""
        cells, step = normal(3, 5000), torch.full((3,), 0.5)
        rows = round_to_steps(cells, step, KEY, CLIENTS)
        total = rows.weighted_sum(torch.ones(3))
        assert torch.equal(total, 0.5 * rows.levels.sum(dim=0))

    def test_awkward_cells(self):
        finite = awkward().nan_to_num(0, 0, 0) * 0.5
        rows = Step(1.0).round_rows(finite, KEY, CLIENTS[:1])
        assert rows.dequantise().isfinite().all()
        assert rows.dequantise().any()


class TestRows:
    @pytest.mark.parametrize(
        "quantiser", [Step(), Step(0.1), Step(0.5, 400), SharedStep().for_size(0.5)], ids=str
    )
    def test_a_real_client_rounds_like_a_simulated_one(self, quantiser):
        cells = normal(3, 7000) ** 3
        together = quantiser.round_rows(cells, KEY, CLIENTS)
        for i in range(3):
            alone = quantiser.round_rows(cells[i][None], KEY, CLIENTS[i : i + 1])
            assert same(together.row(i), alone.row(0))
            assert torch.equal(together.row(i).floats(), together.dequantise()[i])

    def test_sums_are_of_what_the_server_reads(self):
        sent = Step(0.2).round_rows(normal(5, 700), KEY, torch.arange(5))
        weights = normal(5, seed=1)
        expected = weights.double() @ sent.dequantise().double()
        got = sent.weighted_sum(weights).double()
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("tau", [0.02, 0.5, 2.0, 8.0, 32.0])
    def test_predicted_bytes_are_those_of_the_messages(self, kind, tau):
        for count in (3000, 70_000, 300_000):
            sent = Step(tau).round_rows(numbers(kind, 2, count), KEY, CLIENTS[:2])
            sizes = sent.section_bytes()
            assert sizes.dtype == torch.float64
            for i in range(2):
                values = sent.row(i)
                assert values.section_bytes() == pytest.approx(float(sizes[i]), rel=1e-12)
                message = encode(DenseVector(values))
                assert_predicted(sizes[i], message)
                assert len(message) - HEADER_BYTES <= Step(tau).most_bytes(count)

    def test_inputs_need_not_be_contiguous_or_detached(self):
        cells = normal(700, 3).requires_grad_()
        rows = Step(1.0).round_rows(cells.T, KEY, CLIENTS)
        alone = Step(1.0).round_rows(cells.detach().T.contiguous(), KEY, CLIENTS)
        assert torch.equal(rows.levels, alone.levels)
        assert not rows.dequantise().requires_grad

    def test_nothing_to_send(self):
        for shape in ((0, 10), (2, 0)):
            for quantiser in (Step(), Step(8.0, 1000)):
                rows = quantiser.round_rows(torch.zeros(shape), KEY, CLIENTS[: shape[0]])
                assert torch.equal(rows.weighted_sum(torch.ones(shape[0])), torch.zeros(shape[1]))
                assert rows.section_bytes().shape == (shape[0],)


def test_no_levels_have_more_entropy_than_geometric_ones():
    for mean in (0.01, 0.125, 1.0, 30.0):
        q = (math.sqrt(1 + mean * mean) - 1) / mean
        k = np.arange(-4000, 4001)
        p = (1 - q) / (1 + q) * q ** np.abs(k)
        p = p[p > 0]
        assert most_entropy(mean) == pytest.approx(-(p * np.log2(p)).sum(), rel=1e-6)
    row = Step(4.0).round_rows(normal(1, 100_000), KEY, CLIENTS[:1])
    _, found = np.unique(row.levels.numpy(), return_counts=True)
    share = found / found.sum()
    assert -(share * np.log2(share)).sum() < most_entropy(0.25)


class TestMistakes:
    @pytest.mark.parametrize("tau", [0.0, -1.0, math.inf, math.nan])
    def test_tau(self, tau):
        with pytest.raises(ValueError, match="tau must be from 0.000977 to 1.04858e\\+06, got"):
            Step(tau)

    @pytest.mark.parametrize("bytes", [-1, 1.5, True])
    def test_bytes(self, bytes):
        with pytest.raises(ValueError, match="bytes must be a whole number, or 0 for no cap, got"):
            Step(8.0, bytes)

    def test_rows(self):
        with pytest.raises(ValueError, match="cells must be float32, got torch.float64"):
            Step().round_rows(normal(1, 3).double(), KEY, CLIENTS[:1])
        with pytest.raises(ValueError, match="streams must be an int64 tensor of shape \\(1,\\)"):
            Step().round_rows(normal(1, 3), KEY, CLIENTS)
        with pytest.raises(ValueError, match="steps must be float32 of shape \\(1,\\)"):
            round_to_steps(normal(1, 3), torch.ones(2), KEY, CLIENTS[:1])
        with pytest.raises(ValueError, match="levels are int8, int16 or int32"):
            round_to_steps(normal(1, 3), torch.ones(1), KEY, CLIENTS[:1], torch.int64)
        with pytest.raises(ValueError, match="weights must be float32 of shape \\(1,\\)"):
            Step().round_rows(normal(1, 3), KEY, CLIENTS[:1]).weighted_sum(torch.ones(2))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "quantiser", [Step(), Step(0.1), Step(0.5, 2000), SharedStep(1.0).for_size(2.0)]
)
def test_a_gpu_sends_the_same_without_waiting(quantiser):
    rows = normal(3, 30_000) ** 3
    here = quantiser.round_rows(rows, KEY, CLIENTS)
    rows, clients, weights = rows.cuda(), CLIENTS.cuda(), torch.ones(3, device="cuda")
    quantiser.round_rows(rows, KEY, clients).section_bytes()  # what is kept there is moved once
    with nothing_waits():
        there = quantiser.round_rows(rows, KEY, clients)
        sizes, total = there.section_bytes(), there.weighted_sum(weights)
    assert torch.equal(there.steps.cpu(), here.steps)
    assert torch.equal(there.levels.cpu(), here.levels)
    torch.testing.assert_close(sizes.cpu(), here.section_bytes())
    torch.testing.assert_close(total.cpu(), here.weighted_sum(weights.cpu()))


def test_by_name():
    assert QUANTISERS["step"]() == Step(tau=8.0, bytes=0)
    assert not Step().exact
    assert Step().fixed_bytes(1000) is None
