"""Every client rounds its own numbers, means stay right, and predicted bytes are those sent."""

import numpy as np
import pytest
import torch
from awkward import normal
from waiting import nothing_waits
from wire.messages import same

from fetchsgd.quantisers import QUANTISERS, Bits
from fetchsgd.quantisers.bits import BITS_PER_NUMBER, WIDTHS
from fetchsgd.wire import Floats, SketchTable, SparseUpdate, encode
from fetchsgd.wire.sizes import HEADER_BYTES, position_bytes

LOW = [16, 8, 6, 4, 3, 2]
KEY = 0x1234_5678_9ABC_DEF0


def tailed(n, count, tail):
    """Normal numbers, or with a tail of some powers of ten."""
    return normal(n, count) * 10 ** (tail * normal(n, count, seed=1))


@pytest.mark.parametrize("bits", LOW)
def test_the_mean_over_many_keys_is_the_mean_of_the_cohort(bits):
    """Unbiased: the 300 means are all within 6 standard errors but once in a million."""
    rows = normal(3, 300)
    weights, clients = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([4, 99, 10**9])
    sent = [Bits(bits).round_rows(rows, key, clients) for key in range(1000)]
    sums = torch.stack([each.weighted_sum(weights) for each in sent]).double()
    off = sums.mean(0) - (weights @ rows).double()
    # Between two levels a step apart the variance is at most that of half the step.
    step = rows.abs().max() * (2.0**-8 if bits == 16 else 1.01 / (2 ** (bits - 1) - 1))
    error = weights.norm() * step / 2 / 1000**0.5
    assert off.abs().max() < 6 * error
    assert sums.std(0).max() > 0


@pytest.mark.parametrize("bits", WIDTHS)
class TestRows:
    def test_a_real_client_rounds_like_a_simulated_one(self, bits):
        rows, clients = normal(4, 700), torch.arange(4) + 10
        together = Bits(bits).round_rows(rows, KEY, clients)
        for i, me in enumerate(clients.tolist()):
            alone = Bits(bits).round_rows(rows[i][None], KEY, torch.tensor([me]))
            assert same(together.row(i), alone.row(0))
            assert torch.equal(together.row(i).floats(), together.dequantise()[i])

    def test_other_keys_and_clients_round_otherwise(self, bits):
        row = normal(1, 700)
        drawn = [
            Bits(bits).round_rows(row, key, torch.tensor([client])).dequantise()
            for key, client in ((1, 1), (2, 1), (1, 2))
        ]
        changes = [torch.equal(drawn[0], other) for other in drawn[1:]]
        assert changes == [bits == 32] * 2

    def test_sums_are_of_what_the_server_reads(self, bits):
        sent = Bits(bits).round_rows(normal(5, 700), KEY, torch.arange(5))
        weights = normal(5, seed=1)
        expected = weights.double() @ sent.dequantise().double()
        torch.testing.assert_close(
            sent.weighted_sum(weights).double(), expected, rtol=1e-5, atol=1e-5
        )

    @pytest.mark.parametrize("tail", [0.0, 1.0])
    def test_predicted_bytes_are_those_of_the_messages(self, bits, tail):
        """To half a percent, for normal and for heavy-tailed numbers, dense and sparse."""
        dim, count = 10**5, 20_000
        sent = Bits(bits).round_rows(tailed(3, count, tail), KEY, torch.tensor([5, 6, 7]))
        places = torch.from_numpy(np.sort(np.random.default_rng(0).permutation(dim)[:count]))
        place_bytes = float(position_bytes(dim, torch.tensor([count]))[0])
        sizes = sent.section_bytes()
        assert sizes.dtype == torch.float64
        for i in range(3):
            values, size = sent.row(i), HEADER_BYTES + float(sizes[i])
            assert values.section_bytes() == sizes[i]
            dense = len(encode(SketchTable(dim, 1, count, 1, 0, values)))
            assert size == pytest.approx(dense, rel=0.005)
            sparse = len(encode(SparseUpdate(dim, places, values)))
            assert size + place_bytes == pytest.approx(sparse, rel=0.005)

    def test_sections_are_of_the_formats_and_sizes_announced(self, bits):
        quantiser = Bits(bits)
        for count in (0, 1, 255, 256, 257, 3000, 70_000):
            for tail in (0.0, 0.3, 1.0, 3.0):
                values = quantiser.round_rows(tailed(1, count, tail), KEY, torch.tensor([1])).row(0)
                coding = values.coding()
                section = values.write(coding)
                assert quantiser.reads(coding.format)
                assert len(section) <= quantiser.most_bytes(count)
                fixed = quantiser.fixed_bytes(count)
                assert fixed == (len(section) if bits >= 16 else None)

    def test_no_other_width_reads_its_format(self, bits):
        row = Bits(bits).round_rows(normal(1, 5000), KEY, torch.tensor([1])).row(0)
        format = row.coding().format
        assert [width for width in WIDTHS if Bits(width).reads(format)] == [bits]
        assert not Bits(bits).reads(4)
        assert not Bits(bits).reads(2)

    def test_bits_of_a_normal_number(self, bits):
        """The budget relies on it: never more than said, and within 3 %."""
        count = 400_000
        row = Bits(bits).round_rows(normal(1, count), KEY, torch.tensor([1]))
        measured = 8 * float(row.section_bytes()[0]) / count
        assert measured <= BITS_PER_NUMBER[bits] <= 1.03 * measured


@pytest.mark.gpu
@pytest.mark.parametrize("bits", WIDTHS)
def test_a_gpu_sends_the_same_without_waiting(bits):
    rows, clients = normal(3, 3000), torch.tensor([4, 99, 10**9])
    here = Bits(bits).round_rows(rows, KEY, clients)
    rows, clients, weights = rows.cuda(), clients.cuda(), torch.ones(3, device="cuda")
    Bits(bits).round_rows(rows, KEY, clients).section_bytes()  # what is kept there is moved once
    with nothing_waits():
        there = Bits(bits).round_rows(rows, KEY, clients)
        sizes, total = there.section_bytes(), there.weighted_sum(weights)
    assert torch.equal(there.dequantise().cpu(), here.dequantise())
    torch.testing.assert_close(sizes.cpu(), here.section_bytes())
    torch.testing.assert_close(total.cpu(), here.weighted_sum(weights.cpu()))


def test_floats_go_as_they_are():
    rows = normal(2, 100)
    exact = Bits().round_rows(rows, KEY, torch.arange(2))
    assert Bits().exact
    assert exact.dequantise() is rows
    assert same(exact.row(1), Floats(rows[1]))
    halves = Bits(16).round_rows(rows, KEY, torch.arange(2))
    assert not Bits(16).exact
    assert halves.row(0).values.dtype == torch.bfloat16


@pytest.mark.parametrize("bits", [0, 1, 5, 64, "8", None])
def test_widths_that_do_not_exist(bits):
    with pytest.raises(ValueError, match="bits must be one of 32, 16, 8, 6, 4, 3, 2, got"):
        Bits(bits)


def test_by_name():
    assert QUANTISERS["bits"]().bits == 32
