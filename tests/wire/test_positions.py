"""Positions in nearly the fewest bits, wherever they lie."""

from math import lgamma, log

import numpy as np
import pytest
import torch
from wire.messages import subset

from fetchsgd.wire import (
    Floats,
    Integers,
    SparseUpdate,
    WireError,
    decode,
    encode,
    gaps,
    positions,
)
from fetchsgd.wire.choices import choose
from fetchsgd.wire.positions import BITMAP, GAPS, GOLOMB
from fetchsgd.wire.rans import TOTAL
from fetchsgd.wire.reader import Reader

DIM = 6_500_000
DENSITIES = [1e-6, 1e-5, 3e-5, 1e-4, 1e-3, 1e-2, 0.05, 0.2, 0.4, 0.5]


def least_bits(dim, count):
    """log2 of the number of subsets."""
    return (lgamma(dim + 1) - lgamma(count + 1) - lgamma(dim - count + 1)) / log(2)


def section(indices, dim):
    choices = choose(SparseUpdate(dim, indices, Floats(torch.zeros(len(indices)))))
    return positions.write(indices.numpy(), dim, choices.positions, choices.gap_code)


@pytest.mark.parametrize("where", ["random", "runs", "front", "even"])
@pytest.mark.parametrize("density", DENSITIES)
def test_within_three_percent_of_the_least(density, where):
    count = int(density * DIM)
    indices = subset(DIM, count, where, np.random.default_rng(0))
    least = least_bits(DIM, count)
    assert 8 * len(section(indices, DIM)) <= 1.03 * least + 64


@pytest.mark.parametrize("dim", [10, 100, 1000, 5000])
def test_small_updates_are_within_three_percent_and_64_bits(dim):
    rng = np.random.default_rng(dim)
    for count in {1, 2, 3, dim // 10, dim // 3, dim // 2}:
        indices = subset(dim, count, "random", rng)
        assert 8 * len(section(indices, dim)) <= 1.03 * least_bits(dim, count) + 64


@pytest.mark.parametrize("format", [BITMAP, GOLOMB, GAPS])
@pytest.mark.parametrize("dim", [2, 3, 50, 256, 257, 1000])
def test_every_format_takes_every_subset(format, dim):
    rng = np.random.default_rng(dim)
    for count in {1, 2, dim // 2, dim - 1}:
        if (format == GOLOMB and count > positions.MOST_GOLOMB) or not 0 < count < dim:
            continue
        for where in ("random", "front"):
            indices = subset(dim, count, where, rng).numpy()
            code = gaps.best_code(dim, count)
            data = positions.write(indices, dim, format, code)
            reader = Reader(memoryview(data))
            found, read_code = positions.read(reader, dim, count, format)
            assert (found == indices).all()
            assert reader.left == 0
            assert read_code == (code if format == GAPS else None)


def test_any_gap_code_works():
    rng = np.random.default_rng(0)
    for _ in range(200):
        code = gaps.GapCode(
            int(rng.integers(0, 49)), int(rng.integers(1, 100)), int(rng.integers(1, 2**16))
        )
        if code.frequencies().sum() != TOTAL or (code.frequencies()[: code.escape + 1] < 1).any():
            continue
        indices = subset(3000, 300, "random", rng).numpy()
        data = gaps.write(indices, 3000, code)
        found, _ = gaps.read(Reader(memoryview(data)), 3000, 300)
        assert (found == indices).all()


@pytest.mark.parametrize("count", [1, 100, 70_000])
def test_the_largest_dim(count):
    dim = 2**48
    for first in (0, dim // 3, dim - count):
        indices = torch.arange(first, first + count)
        data = gaps.write(indices.numpy(), dim, gaps.best_code(dim, count))
        found, _ = gaps.read(Reader(memoryview(data)), dim, count)
        assert (found == indices.numpy()).all()


def test_segments_must_meet():
    indices = subset(10**6, 70_000, "random", np.random.default_rng(0)).numpy()
    code = gaps.best_code(10**6, 70_000)
    data = bytearray(gaps.write(indices, 10**6, code))
    base = int(indices[65535] + 1).to_bytes(8, "little")
    at = data.index(base)
    for wrong in (int(indices[65535]), 10**6 + 1, 2**64 - 1):
        data[at : at + 8] = wrong.to_bytes(8, "little")
        with pytest.raises(WireError, match="segment of gaps"):
            gaps.read(Reader(memoryview(data)), 10**6, 70_000)


def test_the_size_follows_from_dim_and_count():
    """Up to rounding: a third of a percent."""
    rng = np.random.default_rng(0)
    for density in (1e-3, 1e-2, 0.1):
        count = int(density * DIM)
        floats = Floats(torch.zeros(count, dtype=torch.float16))
        sizes = [
            len(encode(SparseUpdate(DIM, subset(DIM, count, where, rng), floats)))
            for where in ("random", "runs", "front", "even")
        ]
        assert max(sizes) - min(sizes) < 0.0033 * min(sizes)


@pytest.mark.parametrize("count", [3, 1000])
def test_indices_beyond_32_bits(count):
    """As of a model of seven billion weights; neither memory nor time follow the dimension."""
    dim = 7_000_000_000
    edges = torch.tensor([0, 2**31 - 1, 2**31, 2**32 - 1, 2**32, dim - 1])
    more = torch.randint(0, dim, (count,), generator=torch.Generator().manual_seed(0))
    indices = torch.cat([edges, more]).unique()
    for values in (Floats(torch.ones(len(indices))), Integers(torch.ones_like(indices))):
        found = decode(encode(SparseUpdate(dim, indices, values, 5, 2)))
        assert found.dim == dim
        assert torch.equal(found.indices, indices)
