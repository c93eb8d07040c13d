"""Predicted sizes against messages."""

import numpy as np
import pytest
import torch
from wire.messages import integers, quantised, subset

from fetchsgd.wire import DenseVector, Floats, Integers, SparseUpdate, encode, sizes
from fetchsgd.wire.integers import symbols_of
from fetchsgd.wire.rans import histogram

CLOSE = 0.005
FROM = 2000


def check(predicted, message):
    predicted = sizes.HEADER_BYTES + float(predicted)
    if len(message) >= FROM:
        assert abs(predicted - len(message)) <= CLOSE * len(message)
    else:
        assert abs(predicted - len(message)) <= CLOSE * FROM + 6


def counts_of(symbols):
    return torch.from_numpy(histogram(symbols))[None]


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("spread", [0.02, 0.1, 0.2, 0.35, 0.6, 1.0, 3.0])
def test_cells(bits, spread):
    rng = np.random.default_rng(0)
    for count in (300, 3000, 10_000, 50_000, 70_000, 300_000):
        cells = quantised(bits, count, rng, spread)
        predicted = sizes.quantised_bytes(counts_of(cells.symbols.numpy()), bits, count)
        check(predicted, encode(DenseVector(cells)))


def test_packed_cells_are_exact():
    rng = np.random.default_rng(0)
    noise = quantised(8, 5000, rng, 0)
    symbols = torch.from_numpy(rng.integers(0, 255, len(noise.symbols)).astype(np.uint8))
    symbols[5000:] = 127
    cells = type(noise)(8, 5000, noise.scales, symbols)
    predicted = sizes.quantised_bytes(counts_of(symbols.numpy()), 8, 5000)
    assert float(predicted) == sizes.packed_bytes(8, 5000)
    assert len(encode(DenseVector(cells))) == sizes.HEADER_BYTES + sizes.packed_bytes(8, 5000)


@pytest.mark.parametrize("where", ["random", "runs", "even"])
@pytest.mark.parametrize("dim", [20_000, 300_000])
@pytest.mark.parametrize("density", [1e-3, 0.01, 0.1, 0.3, 0.6, 1.0])
def test_integer_updates(dim, density, where):
    rng = np.random.default_rng(0)
    count = int(dim * density)
    for scale in (0.3, 3, 100, 1e9):
        values = integers(count, rng, scale)
        update = SparseUpdate(dim, subset(dim, count, where, rng), values)
        everywhere = torch.zeros(dim, dtype=torch.int64)
        everywhere[update.indices] = values.values
        counts = torch.bincount(sizes.bucket_symbols(everywhere).long(), minlength=256)[None]
        check(sizes.integer_update_bytes(counts, dim), encode(update))


@pytest.mark.parametrize("where", ["random", "runs", "even"])
@pytest.mark.parametrize("dim", [20_000, 300_000, 3_000_000])
@pytest.mark.parametrize("density", [1e-4, 1e-3, 0.01, 0.05, 0.2, 0.45, 0.5])
def test_sparse_updates(dim, density, where):
    rng = np.random.default_rng(0)
    count = int(dim * density)
    indices = subset(dim, count, where, rng)
    places = sizes.position_bytes(dim, torch.tensor([count]))
    floats = Floats(torch.zeros(count, dtype=torch.bfloat16))
    predicted = places + sizes.floats_bytes(count, torch.bfloat16)
    check(predicted, encode(SparseUpdate(dim, indices, floats)))
    cells = quantised(2, count, rng, 0.45)
    predicted = places + sizes.quantised_bytes(counts_of(cells.symbols.numpy()), 2, count)
    check(predicted, encode(SparseUpdate(dim, indices, cells)))


def test_many_at_once_are_one_after_another():
    rng = np.random.default_rng(0)
    counts = torch.from_numpy(rng.integers(0, 1000, (5, 256)) * (rng.random((5, 256)) < 0.2))
    counts[0] = 0
    counts[:, 0] += 500_000 - counts.sum(dim=1)
    cells = counts * torch.from_numpy(np.isin(np.arange(256) % 4, [0, 1, 2]))
    for function in (
        lambda h: sizes.integer_update_bytes(h, 500_000),
        lambda h: sizes.quantised_bytes(h, 8, int(cells.sum(dim=1)[0])),
        lambda h: sizes.position_bytes(500_000, h[:, 1:].sum(dim=1)),
    ):
        together = function(counts)
        assert together.dtype == torch.float64
        assert torch.equal(together, torch.cat([function(row[None]) for row in counts]))
        assert torch.isfinite(together).all()


def test_nothing_and_everything_have_no_positions():
    assert sizes.position_bytes(1000, torch.tensor([0, 1000])).tolist() == [0, 0]
    assert sizes.position_bytes(0, torch.tensor([0])).tolist() == [0]
    assert sizes.position_bytes(1, torch.tensor([0, 1])).tolist() == [0, 0]
    nothing = torch.zeros(1, 256, dtype=torch.int64)
    nothing[0, 0] = 50
    assert float(sizes.integer_update_bytes(nothing, 50)) == 0


def test_bucket_symbols_are_those_of_the_encoder():
    around = [s * (2**e + d) for e in range(63) for d in (-1, 0, 1) for s in (1, -1)]
    rng = np.random.default_rng(0)
    random = rng.integers(-(2**63), 2**63 - 1, 2000) >> rng.integers(0, 63, 2000)
    edges = [2**63 - 1, -(2**63), -(2**63) + 1, *range(-20, 20), 2**62 + 2**61 - 1]
    values = torch.tensor([*around, *random.tolist(), *edges])
    assert sizes.bucket_symbols(values).numpy().tolist() == symbols_of(values.numpy()).tolist()
    assert sizes.bucket_symbols(values[:30].reshape(5, 6)).shape == (5, 6)


def test_integers_without_a_place_are_counted_too():
    values = torch.arange(-3000, 3000)
    predicted = sizes.integer_bytes(counts_of(symbols_of(values.numpy())))
    check(predicted, encode(DenseVector(Integers(values))))
