"""Steps that a message does not choose alone: under a cap on its bytes, or one for all clients."""

import math

import pytest
import torch
from awkward import normal
from rows_to_send import KINDS, numbers

from fetchsgd.quantisers import Step
from fetchsgd.quantisers.step import SAMPLED
from fetchsgd.quantisers.steps import rms_steps
from fetchsgd.wire import DenseVector, encode
from fetchsgd.wire.sizes import HEADER_BYTES

KEY = 0x1234_5678_9ABC_DEF0
CLIENTS = torch.tensor([4, 99, (1 << 62) + 5])


class TestCap:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("bytes", [300, 1000, 5000, 20_000, 100_000])
    def test_no_message_is_longer_and_little_is_wasted(self, kind, bytes):
        quantiser = Step(0.01, bytes)
        for count in (5000, 100_000):
            cells = numbers(kind, 3, count)
            rows = quantiser.round_rows(cells, KEY, CLIENTS)
            free = rms_steps(cells, 0.01)
            assert (rows.steps >= free).all()
            for i in range(3):
                size = len(encode(DenseVector(rows.row(i))))
                assert size <= bytes
                assert size - HEADER_BYTES <= quantiser.most_bytes(count)
                if bytes >= 1000:
                    assert rows.steps[i] == free[i] or size >= 0.9 * bytes - 20

    @pytest.mark.parametrize("kind", KINDS)
    def test_long_messages_are_searched_by_a_sample(self, kind):
        cells = numbers(kind, 2, SAMPLED + 12_345)
        for bytes in (3000, 30_000, 300_000):
            rows = Step(0.05, bytes).round_rows(cells, KEY, CLIENTS[:2])
            free = rms_steps(cells, 0.05)
            for i in range(2):
                size = len(encode(DenseVector(rows.row(i))))
                assert size <= bytes
                assert rows.steps[i] == free[i] or size >= 0.9 * bytes

    def test_a_message_that_fits_is_left_alone(self):
        cells = normal(3, 5000)
        free, capped = (q.round_rows(cells, KEY, CLIENTS) for q in (Step(8.0), Step(8.0, 10**6)))
        assert torch.equal(free.steps, capped.steps)
        assert torch.equal(free.levels, capped.levels)

    def test_unbiased(self):
        """Hoeffding, with errors within one step: a correct program fails for one key in 10^9."""
        cells, draws = normal(2000) ** 3, 600
        rows = Step(0.1, 400).round_rows(cells.expand(draws, -1), KEY, torch.arange(draws))
        steps = rows.steps.double()
        assert steps.max() < 1.5 * steps.min()
        off = rows.dequantise().double().mean(dim=0) - cells.double()
        bound = math.sqrt(math.log(2 * 2001 * 1e9) / (2 * draws)) * float(steps.max())
        assert off.abs().max() < bound
        # All numbers together are off by less than their deviations would explain.
        along = rows.dequantise().double() @ cells.double().sign() / cells.abs().sum()
        assert along.mean() == pytest.approx(1, abs=0.01 + 6 * float(along.std()) / draws**0.5)

    def test_too_few_bytes_for_anything(self):
        with pytest.raises(ValueError, match=r"upload.bytes = 100 holds no message of 5000"):
            Step(8.0, 100).round_rows(normal(1, 5000), KEY, CLIENTS[:1])
