"""The laws of random rounding."""

import math

import pytest
import torch
from awkward import awkward, normal

from fetchsgd.quantisers.kernels import reference
from fetchsgd.quantisers.level_layout import BITS, CELLS_PER_SYMBOL, RUN
from fetchsgd.quantisers.levels import (
    Quantised,
    Rounding,
    quantise,
    quantise_rows,
    round_to_bfloat16,
)

KEY = 0x1234_5678_9ABC_DEF0
STREAMS = torch.tensor([0, 3, (1 << 62) + 5, 1 << 31, 7])


@pytest.mark.parametrize("bits", BITS)
class TestQuantised:
    def test_layout(self, bits):
        top = 2 ** (bits - 1) - 1
        levels = torch.arange(600) % (2 * top + 1) - top
        # With L in it, the scale of every run is L, so each cell is exactly a level.
        levels[::RUN] = top
        message = quantise(levels.float(), bits, Rounding(KEY))
        assert torch.equal(message.scales, torch.full((3,), float(top)))
        stride = RUN // CELLS_PER_SYMBOL[bits]
        assert len(message.symbols) == 3 * stride
        for cell in range(3 * RUN):
            run, within = divmod(cell, RUN)
            symbol = int(message.symbols[run * stride + within % stride])
            level = (symbol >> bits * (within // stride)) % 2**bits - top
            assert level == (levels[cell] if cell < 600 else 0)
        assert torch.equal(message.floats(), levels.float())

    def test_error_is_below_a_level(self, bits):
        cells = normal(5000)
        message = quantise(cells, bits, Rounding(KEY, 5))
        step = message.scales.repeat_interleave(RUN)[:5000] / (2 ** (bits - 1) - 1)
        assert ((message.floats() - cells).abs() <= step * 1.0001).all()

    def test_scales(self, bits):
        cells = normal(20, RUN)
        scales = quantise_rows(cells, bits, KEY, torch.arange(20)).scales[:, 0]
        size = cells.abs().amax(dim=1)
        assert torch.equal(scales.bfloat16().float(), scales)
        assert (scales >= size).all()
        assert (scales <= size * (1 + 2**-7)).all()

    def test_unbiased(self, bits):
        """Hoeffding: a correct program fails for one key in 10^9, whatever the cells are."""
        draws, top = 4000, 2 ** (bits - 1) - 1
        cells = normal(RUN)
        rows = quantise_rows(cells.expand(draws, RUN), bits, KEY, torch.arange(draws))
        # Errors in steps: independent, each in an interval of length 1.
        levels = reference.levels_of(rows.symbols, bits, 1)[:, 0].double()
        error = levels - cells.double() * top / rows.scales[0].double()
        tests = len(BITS) * (RUN + 2)
        bound = lambda n: math.sqrt(math.log(2 * tests * 1e9) / (2 * n))
        assert (error.mean(dim=0).abs() < bound(draws)).all()
        assert abs(error.mean()) < bound(draws * RUN)
        assert abs((error * cells.sign()).mean()) < bound(draws * RUN)

    def test_row_is_what_the_client_alone_sends(self, bits):
        cells = normal(5, 700)
        rows = quantise_rows(cells, bits, KEY, STREAMS)
        for i, stream in enumerate(STREAMS.tolist()):
            alone = quantise(cells[i], bits, Rounding(KEY, stream))
            assert isinstance(alone, Quantised)
            assert (alone.bits, alone.count) == (bits, 700)
            assert torch.equal(alone.scales, rows.row(i).scales)
            assert torch.equal(alone.symbols, rows.row(i).symbols)

    def test_weighted_sum_is_the_sum_of_rows(self, bits):
        rows = quantise_rows(normal(5, 700), bits, KEY, STREAMS)
        weights = normal(5, seed=1)
        expected = sum(w * rows.row(i).floats().double() for i, w in enumerate(weights))
        got = rows.weighted_sum(weights).double()
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.usefixtures("restore_threads")
    def test_threads_change_no_bit(self, bits):
        results = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            rows = quantise_rows(normal(2, 300_001), bits, KEY, STREAMS[:2])
            total = rows.weighted_sum(torch.tensor([0.3, -0.7]))
            results.append((rows.scales, rows.symbols, total, rows.histograms()))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))

    def test_awkward_cells(self, bits):
        cells = awkward()[0]
        out = quantise(cells, bits, Rounding(KEY)).floats().view(-1, RUN)
        finite = cells.view(-1, RUN).isfinite().all(dim=1)
        # What has diverged shows, in its own run alone; what is too small to scale vanishes.
        assert out[~finite].isnan().all()
        assert out[finite].isfinite().all()
        assert (out[:2] == 0).all()
        assert (out[4] == 0).all()
        assert (out[2:4].abs().amax(dim=1) > 0).all()
        assert (out[cells.view(-1, RUN) == 0] == 0).all()


def test_words_depend_on_key_stream_and_place():
    cells = torch.full((2 * RUN,), 0.5)
    cells[::RUN] = 1

    def drawn(key, stream):
        return quantise(cells, 8, Rounding(key, stream)).symbols.view(2, RUN)

    once = drawn(1, 1)
    assert torch.equal(drawn(1, 1), once)
    assert not torch.equal(once[0], once[1])
    for key, stream in ((2, 1), (1, 2), (1 + (1 << 32), 1), (1, 1 + (1 << 32))):
        assert not torch.equal(drawn(key, stream), once)


def test_bits_of_the_wire_stay_as_they_are():
    cells = torch.linspace(-1, 1, 16)
    message = quantise(cells, 4, Rounding(KEY, 3))
    assert message.symbols[:16].tolist() == [
        112,
        113,
        114,
        115,
        116,
        117,
        117,
        118,
        120,
        121,
        121,
        122,
        123,
        124,
        125,
        126,
    ]


def test_bfloat16_has_exactly_the_right_mean():
    # All 2^16 values of the random bits, for magnitudes down to the denormals.
    cells = torch.cat([normal(20), normal(10) * 1e-38, normal(10) * 1e30, torch.zeros(1)]).abs()
    extra = torch.arange(1 << 16).expand(len(cells), -1)
    moved = reference.cut_to_bfloat16(
        cells.view(torch.int32).long()[:, None].expand_as(extra), extra
    )
    values = moved.int().view(torch.float32).double()
    assert torch.equal(values.mean(dim=1), cells.double())


def test_bfloat16_values(restore_threads):
    cells = normal(2, 300_001)
    torch.set_num_threads(1)
    out = round_to_bfloat16(cells, KEY, STREAMS[:2])
    assert torch.equal(out.bfloat16().float(), out)
    assert ((out - cells).abs() <= cells.abs() * 2**-7).all()
    # Neighbours are 2^-7 apart at most: by Hoeffding this fails for one key in 10^9.
    assert abs(((out - cells) / cells).double().mean()) < 2**-7 * math.sqrt(22 / (2 * 600_002))
    torch.set_num_threads(3)
    assert torch.equal(round_to_bfloat16(cells, KEY, STREAMS[:2]), out)
    odd = awkward()
    rounded = round_to_bfloat16(odd, KEY, STREAMS[:1])
    assert torch.equal(rounded.isnan(), odd.isnan())
    assert torch.equal(rounded.isinf(), odd.isinf())
    assert torch.equal(rounded.signbit()[~odd.isnan()], odd.signbit()[~odd.isnan()])


def test_inputs_need_not_be_contiguous_or_detached():
    cells = normal(700, 3).requires_grad_()
    rows = quantise_rows(cells.T, 4, KEY, STREAMS[:3])
    assert torch.equal(rows.row(1).symbols, quantise(cells[:, 1], 4, Rounding(KEY, 3)).symbols)
    assert not rows.row(0).floats().requires_grad


def test_nothing_to_send():
    for shape in ((0, 10), (2, 0)):
        rows = quantise_rows(torch.zeros(shape), 4, KEY, STREAMS[: shape[0]])
        assert torch.equal(rows.weighted_sum(torch.ones(shape[0])), torch.zeros(shape[1]))
        assert rows.histograms().shape == (shape[0], 256)
        assert round_to_bfloat16(torch.zeros(shape), KEY, STREAMS[: shape[0]]).shape == shape


class TestMistakes:
    @pytest.mark.parametrize("bits", [1, 5, 16, 4.5, "4"])
    def test_bits(self, bits):
        with pytest.raises(ValueError, match=f"bits must be one of 2, 3, 4, 6, 8, got {bits!r}"):
            quantise(torch.zeros(3), bits, Rounding(0))

    def test_cells(self):
        with pytest.raises(ValueError, match="cells must be float32, got torch.float64"):
            quantise(torch.zeros(3, dtype=torch.float64), 4, Rounding(0))
        with pytest.raises(
            ValueError, match="one dimension, got torch.float32 of shape \\(1, 3\\)"
        ):
            quantise(torch.zeros(1, 3), 4, Rounding(0))
        with pytest.raises(ValueError, match="cells must be a tensor of shape \\(n, count\\)"):
            quantise_rows(torch.zeros(3), 4, 0, STREAMS[:3])

    @pytest.mark.parametrize("number", [-1, 1 << 63, 1.5, True])
    def test_key_and_stream(self, number):
        with pytest.raises(ValueError, match="key must be a whole number from 0 to 2\\^63 - 1"):
            quantise(torch.zeros(3), 4, Rounding(number))
        with pytest.raises(ValueError, match="stream must be a whole number from 0"):
            quantise(torch.zeros(3), 4, Rounding(0, number))

    def test_streams_and_weights(self):
        for streams in (STREAMS[:2], STREAMS[:3].int(), [0, 1, 2]):
            with pytest.raises(
                ValueError, match="streams must be an int64 tensor of shape \\(3,\\)"
            ):
                quantise_rows(torch.zeros(3, 4), 4, 0, streams)
        rows = quantise_rows(torch.zeros(3, 4), 4, 0, STREAMS[:3])
        with pytest.raises(
            ValueError, match="weights must be float32 of shape \\(3,\\), one for each row"
        ):
            rows.weighted_sum(torch.ones(2))
