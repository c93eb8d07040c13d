"""The GPU kernels without a GPU: Triton's interpreter runs them, slowly, on small inputs.

`make test-gpu` runs the compiled kernels through all laws of the sketch.
"""

import pytest
import torch

pytest.importorskip("triton")

from fetchsgd.sketch.hashing import BlockHash
from fetchsgd.sketch.kernels import cuda
from fetchsgd.sketch.kernels.cuda import TritonKernels
from fetchsgd.sketch.kernels.reference import ReferenceKernels

CPU = torch.device("cpu")
SHAPES = [
    (700, 5, 130, 16),
    (1500, 1, 300, 64),
    (1203, 4, 150, 32),
    (900, 3, 600, 256),
    (50, 2, 100, 64),
]
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU the compiled kernels are tested instead"
)


@pytest.fixture(params=SHAPES, ids=str)
def pair(request):
    dim, rows, cols, block = request.param
    hash = BlockHash(dim, rows, cols, block, seed=0)
    return TritonKernels(hash, CPU), ReferenceKernels(hash, CPU)


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_equals_the_reference(pair):
    ours, reference = pair
    dim = ours.hash.dim
    tables = ours.sketch([normal(2, dim)])
    torch.testing.assert_close(tables, reference.sketch([normal(2, dim)]), rtol=1e-4, atol=1e-4)
    table = tables[0]
    assert torch.equal(ours.estimate(table), reference.estimate(table))
    picks = torch.arange(0, dim, 7)
    assert torch.equal(ours.query(table, picks), reference.query(table, picks))
    for k in (0, 1, dim // 3, dim):
        for got, expected in zip(ours.top_k(table, k), reference.top_k(table, k), strict=True):
            assert torch.equal(got, expected)
    for threshold in (0.0, 1.0):
        got, expected = ours.at_least(table, threshold), reference.at_least(table, threshold)
        assert torch.equal(got[0], expected[0])


def test_ties_and_sparse_input(pair):
    ours, reference = pair
    flat = normal(ours.hash.rows, ours.hash.cols).sign()
    for table in (flat, torch.zeros_like(flat)):
        for k in (3, ours.hash.dim // 2):
            assert torch.equal(ours.top_k(table, k)[0], reference.top_k(table, k)[0])
    for count in (0, 1, ours.hash.dim // 2):
        indices = torch.arange(count) * 2
        values = normal(count)
        expected = reference.scatter(indices, values)
        torch.testing.assert_close(ours.scatter(indices, values), expected, rtol=1e-4, atol=1e-4)
        values[::3] = 0.0
        assert torch.equal(ours.touched(indices, values), reference.touched(indices, values))


@pytest.mark.parametrize("longest", [0, cuda.SORTED_CELLS], ids=["selected", "sorted"])
@pytest.mark.parametrize("levels", [1, 3, 1000])
def test_the_threshold_of_one_row_is_that_of_all_estimates(longest, levels, monkeypatch):
    monkeypatch.setattr(cuda, "SORTED_CELLS", longest)
    hash = BlockHash(1500, 1, 300, 4, seed=0)
    ours, reference = TritonKernels(hash, CPU), ReferenceKernels(hash, CPU)
    table = torch.randint(-levels, levels + 1, (1, 300), generator=torch.Generator().manual_seed(0))
    table = table.float()
    ordered = reference.estimate(table).abs().sort(descending=True).values
    for k in (1, 2, 700, 1500):
        assert torch.equal(ours._threshold_of_one_row(table[0], k), ordered[k - 1 : k])


def test_pieces_equal_whole(pair):
    ours, _ = pair
    x = normal(2, ours.hash.dim)
    sizes = [1, ours.hash.dim // 2, 3, ours.hash.dim - ours.hash.dim // 2 - 4]
    assert torch.equal(ours.sketch(list(x.split(sizes, dim=1))), ours.sketch([x]))


def test_small_tables_are_split_over_more_programs():
    hash = BlockHash(6000, 1, 10, 1, seed=0)
    ours, reference = TritonKernels(hash, CPU), ReferenceKernels(hash, CPU)
    assert ours._splits(1) > 1
    x = normal(1, 6000)
    torch.testing.assert_close(ours.sketch([x]), reference.sketch([x]), rtol=1e-4, atol=1e-3)
