"""EDEN: the errors that its paper states, an unbiased mean, and its messages."""

import math

import numpy as np
import pytest
import torch
from awkward import normal
from wire.messages import same
from wire.test_hostile import check, mended

from fetchsgd.quantisers import QUANTISERS, Eden
from fetchsgd.quantisers.eden_rotation import BLOCK, centroids, hadamard
from fetchsgd.wire import DenseVector, WireError, decode, encode
from fetchsgd.wire.codec import parse, write
from fetchsgd.wire.header import HEADER_BYTES

KEY, CLIENTS = 5, torch.tensor([3, 10**12, 0])
RATES = [0.1, 0.5, 1, 2, 3, 4]


def spread(kind, count):
    """Numbers that are anything but normal."""
    found = normal(3, count)
    if kind == "one":
        found[:] = 0
        found[:, count // 3] = 2.0
    return found**5 if kind == "heavy" else found


def test_the_best_values_for_normal_numbers():
    # Max (1960), table 1: the squared error with 2, 4, 8 and 16 values.
    for bits, error in ((1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497)):
        values = np.array(centroids(bits))
        x = np.linspace(-8, 8, 400_001)
        density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        off = np.abs(x[:, None] - values).min(axis=1) ** 2
        assert (off * density).sum() * (x[1] - x[0]) == pytest.approx(error, rel=1e-3)
        assert np.array_equal(values, -values[::-1])


def test_hadamard_is_its_own_inverse_and_keeps_lengths():
    cells = normal(2, 3, 64)
    torch.testing.assert_close(hadamard(hadamard(cells)), cells)
    torch.testing.assert_close(hadamard(cells).norm(dim=-1), cells.norm(dim=-1))
    torch.testing.assert_close(hadamard(torch.eye(4)[None]) * 2, torch.tensor(
        [[[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]]
    ))  # fmt: skip


@pytest.mark.parametrize("kind", ["normal", "heavy", "one"])
@pytest.mark.parametrize("rate", RATES)
def test_squared_error_is_that_of_the_paper(rate, kind):
    """1 / (1 - the error of the best values) - 1, and 1 / rate times what is left below one bit."""
    cells = spread(kind, 10 * BLOCK)
    got = Eden(rate).round_rows(cells, KEY, CLIENTS).dequantise()
    relative = (got - cells).square().sum() / cells.square().sum()
    lloyd = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497}[max(int(rate), 1)]
    expected = 1 / (1 - lloyd) / min(rate, 1) - 1
    assert float(relative) == pytest.approx(expected, rel=0.05, abs=1e-2)


@pytest.mark.parametrize("rate", [0.2, 1, 2])
def test_unbiased(rate):
    """The mean of 2000 draws is off by 6 of its deviations at most: one key in 10^5."""
    cells, draws = normal(300) ** 3, 2000
    sent = Eden(rate).round_rows(cells.expand(draws, -1), KEY, torch.arange(draws)).dequantise()
    off = sent.double().mean(dim=0) - cells.double()
    assert (off.abs() <= 6 * sent.double().std(dim=0) / draws**0.5).all()
    along = sent.double() @ cells.double() / cells.double().square().sum()
    assert along.mean() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("count", [1, 7, 4096, 5000])
def test_messages(rate, count):
    quantiser = Eden(rate)
    cells = spread("heavy", count)
    rows = quantiser.round_rows(cells, KEY, CLIENTS)
    for i in range(3):
        alone = quantiser.round_rows(cells[i][None], KEY, CLIENTS[i : i + 1])
        assert same(alone.row(0), rows.row(i))
        data = encode(DenseVector(rows.row(i)))
        assert len(data) - HEADER_BYTES == quantiser.fixed_bytes(count) == rows.section_bytes()[i]
        assert quantiser.fixed_bytes(count) <= quantiser.most_bytes(count)
        found, choices = parse(data)
        assert same(found.values, rows.row(i))
        assert write(found, choices) == data
        assert quantiser.reads(choices.values.format)
        assert torch.equal(found.values.floats(), rows.dequantise()[i])
    weights = torch.tensor([0.5, -1.0, 2.0])
    torch.testing.assert_close(rows.weighted_sum(weights), weights @ rows.dequantise())


def test_bits_on_the_wire():
    for rate in RATES:
        assert 8 * Eden(rate).fixed_bytes(100 * BLOCK) / (100 * BLOCK) < 1.01 * rate + 0.005


def test_zeros_and_what_has_diverged():
    cells = normal(2, 2 * BLOCK)
    cells[0, :BLOCK], cells[1, 5] = 0, math.inf
    got = Eden(1).round_rows(cells, KEY, CLIENTS[:2])
    assert (got.dequantise()[0, :BLOCK] == 0).all()
    assert got.dequantise()[1, :BLOCK].isnan().all()
    with pytest.raises(ValueError, match="scales must be finite"):
        encode(DenseVector(got.row(1)))
    assert Eden().round_rows(torch.zeros(0, 5), KEY, CLIENTS[:0]).dequantise().shape == (0, 5)


@pytest.mark.parametrize("rate", [0.3, 1, 3])
def test_damaged_messages(rate):
    data = encode(DenseVector(Eden(rate).round_rows(normal(1, 50), KEY, CLIENTS[:1]).row(0)))
    for size in range(HEADER_BYTES, len(data)):
        with pytest.raises(WireError):
            decode(mended(data[:size]))
    for bit in range(8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        check(mended(bad))


@pytest.mark.parametrize("rate", [0, 1.5, 5, -1, 1e-9])
def test_rates_that_do_not_exist(rate):
    with pytest.raises(ValueError, match="rate must be 1, 2, 3, 4 or a number from 1/4096 to 1"):
        Eden(rate)


def test_by_name():
    assert QUANTISERS["eden"]() == Eden(rate=1.0)
