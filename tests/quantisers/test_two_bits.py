"""Two bits: the nearest of two magnitudes, their messages, and messages that are damaged."""

import math

import pytest
import torch
from awkward import normal
from wire.messages import same
from wire.test_hostile import check, mended

from fetchsgd.quantisers import QUANTISERS, TwoBits
from fetchsgd.quantisers.two_bits import RUN
from fetchsgd.wire import DenseVector, WireError, decode, encode
from fetchsgd.wire.codec import parse, write
from fetchsgd.wire.header import HEADER_BYTES

KEY, CLIENTS = 5, torch.tensor([3, 10**12, 0])


def test_magnitudes_are_the_means_of_both_sides():
    cells = normal(3, RUN + 100)
    got = TwoBits().round_rows(cells, KEY, CLIENTS).dequantise()
    assert torch.equal(got.sign(), torch.where(cells < 0, -1.0, 1.0))
    for start, stop in ((0, RUN), (RUN, RUN + 100)):
        sizes, read = cells[:, start:stop].abs(), got[:, start:stop].abs()
        is_large = sizes > sizes.mean(dim=1, keepdim=True)
        for row in range(3):
            for side in (is_large[row], ~is_large[row]):
                mean = sizes[row][side].mean().to(torch.bfloat16).float()
                torch.testing.assert_close(
                    read[row][side], mean.expand(int(side.sum())), rtol=8e-3, atol=0
                )


@pytest.mark.parametrize("count", [1, 7, 1024, 5000])
def test_messages(count):
    quantiser, cells = TwoBits(), normal(3, count)
    rows = quantiser.round_rows(cells, KEY, CLIENTS)
    for i in range(3):
        alone = quantiser.round_rows(cells[i][None], KEY, CLIENTS[i : i + 1])
        assert same(alone.row(0), rows.row(i))
        data = encode(DenseVector(rows.row(i)))
        assert len(data) - HEADER_BYTES == quantiser.fixed_bytes(count) == rows.section_bytes()[i]
        found, choices = parse(data)
        assert same(found.values, rows.row(i))
        assert write(found, choices) == data
        assert quantiser.reads(choices.values.format)
        assert torch.equal(found.values.floats(), rows.dequantise()[i])
    weights = torch.tensor([0.5, -1.0, 2.0])
    torch.testing.assert_close(rows.weighted_sum(weights), weights @ rows.dequantise())
    assert quantiser.fixed_bytes(100 * RUN) == 100 * (RUN / 4 + 4)


def test_zeros_and_what_has_diverged():
    cells = normal(2, 2 * RUN)
    cells[0, :RUN], cells[1, 5] = 0, math.inf
    got = TwoBits().round_rows(cells, KEY, CLIENTS[:2])
    assert (got.dequantise()[0, :RUN] == 0).all()
    assert not got.dequantise()[1, :RUN].isfinite().all()
    with pytest.raises(ValueError, match="magnitudes must be finite"):
        encode(DenseVector(got.row(1)))
    assert TwoBits().round_rows(torch.zeros(0, 5), KEY, CLIENTS[:0]).dequantise().shape == (0, 5)


def test_damaged_messages():
    data = encode(DenseVector(TwoBits().round_rows(normal(1, 50), KEY, CLIENTS[:1]).row(0)))
    for size in range(HEADER_BYTES, len(data)):
        with pytest.raises(WireError):
            decode(mended(data[:size]))
    for bit in range(8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        check(mended(bad))


def test_by_name():
    assert QUANTISERS["two_bits"]() == TwoBits()
