"""Predicted sizes of quantised cells against messages."""

import numpy as np
import pytest
import torch
from wire.messages import assert_predicted, quantised

from fetchsgd.quantisers.level_sizes import packed_bytes, quantised_bytes, row_bytes
from fetchsgd.wire import DenseVector, encode, rans
from fetchsgd.wire.sizes import HEADER_BYTES


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("spread", [0.02, 0.1, 0.2, 0.35, 0.6, 1.0, 3.0])
def test_cells(bits, spread):
    rng = np.random.default_rng(0)
    for count in (300, 3000, 10_000, 50_000, 70_000, 300_000):
        cells = quantised(bits, count, rng, spread)
        assert_predicted(cells.section_bytes(), encode(DenseVector(cells)))


def test_packed_cells_are_exact():
    rng = np.random.default_rng(0)
    noise = quantised(8, 5000, rng, 0)
    symbols = torch.from_numpy(rng.integers(0, 255, len(noise.symbols)).astype(np.uint8))
    symbols[5000:] = 127
    cells = type(noise)(8, 5000, noise.scales, symbols)
    assert cells.section_bytes() == packed_bytes(8, 5000)
    assert len(encode(DenseVector(cells))) == HEADER_BYTES + packed_bytes(8, 5000)


@pytest.mark.parametrize("bits", [2, 8])
def test_many_at_once_are_one_after_another(bits):
    rng = np.random.default_rng(0)
    counts = torch.from_numpy(rng.integers(0, 1000, (5, 256)) * (rng.random((5, 256)) < 0.2))
    counts[0] = 0
    counts[:, 0] += 500_000 - counts.sum(dim=1)
    if bits == 2:
        counts *= torch.from_numpy(np.isin(np.arange(256) % 4, [0, 1, 2]))
    together = quantised_bytes(counts, bits, 500_000)
    assert together.dtype == torch.float64
    assert torch.equal(
        together, torch.cat([quantised_bytes(row[None], bits, 500_000) for row in counts])
    )
    assert torch.isfinite(together).all()


@pytest.mark.parametrize("bits", [2, 4, 6, 8])
@pytest.mark.parametrize("count", [0, 5, 3000, 70_000, 300_001])
@pytest.mark.parametrize("spread", [0.0, 0.002, 0.3, 40.0])
def test_the_size_of_one_message_is_that_of_a_row(bits, count, spread):
    """By two programs, to the bit."""
    cells = quantised(bits, count, np.random.default_rng(count), spread)
    counts = rans.histogram(cells.symbols.numpy())
    wanted = float(quantised_bytes(torch.from_numpy(counts)[None], bits, count)[0])
    assert row_bytes(counts, bits, count) == wanted
    assert cells.section_bytes() == wanted
