"""The CPU kernels at every width of their vector instructions, with blocks cut in every way.

Small tables, so that many blocks wrap around or lie across the columns of two threads.
"""

import numpy as np
import pytest
import torch

from fetchsgd.sketch.hashing import BlockHash
from fetchsgd.sketch.kernels.cpu import MAX_ROWS, NumbaKernels
from fetchsgd.sketch.kernels.reference import ReferenceKernels

CPU = torch.device("cpu")
# One lane (1, 3), then 2, 4, 8 and 16, as one instruction a block and as several.
BLOCKS = [1, 3, 2, 6, 4, 12, 8, 40, 16, 48]
# rows and block: odd and even medians, and more rows than a median is compiled for.
SHAPES = [(1, 1), (1, 48), (2, 6), (3, 3), (4, 8), (5, 4), (5, 16), (7, 100), (MAX_ROWS + 1, 4)]


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def plain_loop(hash, x):
    """Sequential float32 addition, coordinate by coordinate."""
    table = np.zeros((hash.rows, hash.cols), dtype=np.float32)
    i = np.arange(hash.dim)
    for row, placements in zip(table, hash.placements, strict=True):
        packed = placements[i // hash.block]
        columns = ((packed >> 1) + i % hash.block) % hash.cols
        np.add.at(row, columns, np.where(packed & 1, -x, x))
    return table


@pytest.mark.parametrize("block", BLOCKS)
def test_sketches_are_a_plain_loop_whatever_the_pieces_and_threads(block, restore_threads):
    hash = BlockHash(140_001, 1, 997, block, seed=0)
    ours = NumbaKernels(hash)
    x = normal(1, hash.dim)
    pieces = list(x.split([1, 2 * block, 7, 70_000, hash.dim - 70_008 - 2 * block], dim=1))
    expected = plain_loop(hash, x[0].numpy())
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        assert np.array_equal(ours.sketch([x])[0].numpy(), expected)
        assert np.array_equal(ours.sketch(pieces)[0].numpy(), expected)


@pytest.mark.parametrize(("rows", "block"), SHAPES)
def test_estimates_are_those_of_the_reference(rows, block):
    """To the last bit, up to the sign of a zero."""
    hash = BlockHash(3001, rows, 131, block, seed=0)
    ours, reference = NumbaKernels(hash), ReferenceKernels(hash, CPU)
    table = normal(rows, hash.cols)
    table[:, :40] = 0
    expected = reference.estimate(table)
    assert torch.equal(ours.estimate(table), expected)
    picks = torch.randperm(hash.dim, generator=torch.Generator().manual_seed(1))
    assert torch.equal(ours.query(table, picks), expected[picks])
    for threshold in (0.0, float(expected.abs().median()), float(expected.abs().max()), 99.0):
        found = ours.at_least(table, threshold)
        chosen = (expected.abs() >= threshold).nonzero().squeeze(1)
        assert torch.equal(found[0], chosen)
        assert torch.equal(found[1], expected[chosen])


def test_sparse_values_need_not_be_neighbours_in_memory():
    hash = BlockHash(500, 3, 131, 4, seed=0)
    ours = NumbaKernels(hash)
    indices, values = torch.arange(500), normal(500, 2)[:, 1]
    assert np.array_equal(ours.scatter(indices, values).numpy(), plain_loop(hash, values.numpy()))
