"""Predicted sizes against messages."""

import numpy as np
import pytest
import torch
from wire.messages import assert_predicted, integers, quantised, subset

from fetchsgd.wire import DenseVector, Floats, Integers, SparseUpdate, encode, sizes
from fetchsgd.wire.chunk_sizes import sparse_bytes, update_bytes
from fetchsgd.wire.chunk_statistics import chunk_statistics
from fetchsgd.wire.sparse_integers import sparse_statistics


@pytest.mark.parametrize("where", ["random", "runs", "even"])
@pytest.mark.parametrize("dim", [20_000, 300_000])
@pytest.mark.parametrize("density", [1e-3, 0.01, 0.1, 0.3, 0.6, 1.0])
def test_integer_updates(dim, density, where):
    rng = np.random.default_rng(0)
    count = int(dim * density)
    for scale in (0.3, 3, 100, 1e9):
        values = integers(count, rng, scale)
        update = SparseUpdate(dim, subset(dim, count, where, rng), values)
        found = sparse_statistics(dim, update.indices, values.values)
        assert_predicted(update_bytes(found, dim), encode(update))


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
    assert_predicted(predicted, encode(SparseUpdate(dim, indices, floats)))
    cells = quantised(2, count, rng, 0.45)
    assert_predicted(places + cells.section_bytes(), encode(SparseUpdate(dim, indices, cells)))


def test_many_at_once_are_one_after_another():
    rng = np.random.default_rng(0)
    counts = torch.from_numpy(rng.integers(0, 1000, (5, 256)) * (rng.random((5, 256)) < 0.2))
    counts[0] = 0
    counts[:, 0] += 500_000 - counts.sum(dim=1)
    for function in (
        sizes.integer_bytes,
        lambda h: sizes.position_bytes(500_000, h[:, 1:].sum(dim=1)),
    ):
        together = function(counts)
        assert together.dtype == torch.float64
        assert torch.equal(together, torch.cat([function(row[None]) for row in counts]))
        assert torch.isfinite(together).all()


def test_many_updates_at_once_are_one_after_another():
    rng = np.random.default_rng(0)
    density = 0.01 * 4.0 ** np.arange(6)[:, None]
    levels = rng.poisson(0.5, (6, 30_000)) * (rng.random((6, 30_000)) < density)
    levels[0], levels[5] = 0, 1
    rows = torch.from_numpy(levels)
    for function in (sparse_bytes, lambda found: update_bytes(found, 30_000)):
        together = function(chunk_statistics(rows))
        each = [function(chunk_statistics(row[None])) for row in rows]
        assert together.dtype == torch.float64
        assert torch.allclose(together, torch.cat(each), rtol=1e-12)


def test_nothing_and_everything_have_no_positions():
    assert sizes.position_bytes(1000, torch.tensor([0, 1000])).tolist() == [0, 0]
    assert sizes.position_bytes(0, torch.tensor([0])).tolist() == [0]
    assert sizes.position_bytes(1, torch.tensor([0, 1])).tolist() == [0, 0]
    assert float(update_bytes(chunk_statistics(torch.zeros(1, 50).long()), 50)) == 0


def test_integers_without_a_place_are_counted_too():
    values = torch.arange(-3000, 3000)
    assert_predicted(Integers(values).section_bytes(), encode(DenseVector(Integers(values))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floats_are_exact(dtype):
    floats = Floats(torch.zeros(1001, dtype=dtype))
    assert sizes.HEADER_BYTES + floats.section_bytes() == len(encode(DenseVector(floats)))
