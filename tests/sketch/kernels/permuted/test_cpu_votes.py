"""What rows vote for, against a walk over all estimates."""

import numpy as np
import pytest
import torch

from fetchsgd.sketch.kernels.permuted.cpu import PermutedNumba, at_least_votes
from fetchsgd.sketch.permutation import Permutation

# dim, rows, cols, block: numbers of 8 to 64 bits for a block, several, cut blocks, a cell for each
SHAPES = [
    (2000, 5, 401, 8),
    (4000, 3, 130, 16),
    (5000, 4, 300, 32),
    (7000, 1, 150, 64),
    (9001, 2, 1100, 256),
    (50, 2, 100, 64),
]


@pytest.fixture(params=SHAPES, ids=str)
def kernels(request):
    return PermutedNumba(Permutation(*request.param, seed=7))


def collected(kernels, prepared, threshold, size):
    room = 2 * size  # for what is above, and for ties
    indices, values = np.zeros(room, dtype=np.int64), np.zeros(room, dtype=np.float32)
    found = (indices, values, np.float32(threshold), size, size)
    kept, above, equal = kernels._collect(found, prepared, range(kernels.hash.dim))
    return indices[:kept].tolist(), values[:kept].tolist(), above, equal


@pytest.mark.parametrize("levels", [3, 1000])  # with ties, and nearly without
def test_votes_find_what_estimates_find(kernels, levels):
    h = kernels.hash
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(h.rows, h.cols, generator=generator)
    table = (table * levels / 3).round()
    ordered = kernels.estimate(table).abs().sort(descending=True).values
    compared = 0
    for rank in (0, 2, h.dim // 200):
        threshold = np.float32(ordered[rank])
        cells, bits = kernels._prepared(table.numpy(), threshold)
        for size in () if bits is None else (3, h.dim):
            expected = collected(kernels, (cells, None), threshold, size)
            assert collected(kernels, (cells, bits), threshold, size) == expected
            compared += 1
    assert compared > 0 or levels == 3 or h.dim < 100


def test_votes_are_not_taken_where_they_say_nothing(kernels):
    h = kernels.hash
    table = torch.randn(h.rows, h.cols, generator=torch.Generator().manual_seed(0)).numpy()
    assert kernels._prepared(table, np.float32(5.0))[1] is not None
    assert kernels._prepared(table, np.float32(0.1))[1] is None  # for nearly everything
    assert kernels._prepared(table, np.float32(0.0))[1] is None
    tiny = np.float32(3e-45)  # half of it is rounded up, so a mean of two may be larger than both
    assert kernels._prepared(np.zeros_like(table), tiny)[1] is None
    table[-1, -1] = np.nan  # a median may pass over it
    assert kernels._prepared(table, np.float32(5.0))[1] is None


def test_half_of_the_rows_must_vote():
    assert at_least_votes(0.25, 1) == 0.25
    assert at_least_votes(0.5, 2) == 0.75
    assert at_least_votes(0.5, 5) == pytest.approx(0.5)
    assert at_least_votes(1.0, 4) == 1.0
