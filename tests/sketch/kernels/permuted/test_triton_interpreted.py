"""The GPU kernels without a GPU: Triton's interpreter runs them, slowly, on small inputs.

`make test-gpu` runs the compiled kernels through all laws of the sketch.
"""

import pytest
import torch

pytest.importorskip("triton")

from fetchsgd.sketch.kernels.permuted import cuda
from fetchsgd.sketch.kernels.permuted.cuda import PermutedTriton
from fetchsgd.sketch.kernels.permuted.reference import PermutedReference
from fetchsgd.sketch.permutation import Permutation

CPU = torch.device("cpu")
# dim, rows, cols, block: cut blocks, cells that are not used, a cell for each, one column
SHAPES = [
    (400, 3, 130, 16),
    (700, 1, 150, 64),
    (1100, 2, 300, 256),
    (200, 1, 37, 1),
    (150, 2, 37, 2),
    (50, 2, 100, 64),
    (60, 1, 9, 8),
]
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU the compiled kernels are tested instead"
)


@pytest.fixture(params=SHAPES, ids=str)
def pair(request, monkeypatch):
    monkeypatch.setattr(cuda, "TILE", 128)
    monkeypatch.setattr(cuda, "READ", 32)
    monkeypatch.setattr(cuda, "PROGRAMS", 0)
    monkeypatch.setattr(cuda, "SPAN", 128)
    monkeypatch.setattr(cuda, "MARKED", 4)
    monkeypatch.setattr(cuda, "VOTED", 16)
    hash = Permutation(*request.param, seed=7)
    return PermutedTriton(hash, CPU), PermutedReference(hash, CPU)


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("count", [1, 3])
def test_tables_are_those_of_the_reference(pair, count):
    ours, reference = pair
    x = normal(count, ours.hash.dim)
    expected = reference.sketch([x])
    assert torch.equal(ours.sketch([x]), expected)
    sizes = [1, ours.hash.dim // 2, 3, ours.hash.dim - ours.hash.dim // 2 - 4]
    assert torch.equal(ours.sketch(list(x.split(sizes, dim=1))), expected)


# Many groups: some are read several at a time, and the rest one by one.
@pytest.mark.parametrize("shape", [(2000, 2, 130, 16), (3000, 1, 150, 64), (6000, 1, 300, 256)])
@pytest.mark.parametrize(("part", "flight"), [(8, 128), (16, 1024)])
def test_threads_that_share_the_hash_of_a_block_sum_the_same(shape, part, flight, monkeypatch):
    sizes = {"PART": part, "FLIGHT": flight, "TILE": 128, "READ": 32, "PROGRAMS": 0}
    for name, size in sizes.items():
        monkeypatch.setattr(cuda, name, size)
    hash = Permutation(*shape, seed=7)
    ours, reference = PermutedTriton(hash, CPU), PermutedReference(hash, CPU)
    for count in (1, 3):
        x = normal(count, hash.dim)
        assert torch.equal(ours.sketch([x]), reference.sketch([x]))


@pytest.mark.parametrize("block", [2, 8])
def test_short_blocks_have_few_threads_or_none_to_share(block, monkeypatch):
    monkeypatch.setattr(cuda, "FLIGHT", 0)
    hash = Permutation(400, 2, 37, block, seed=7)
    ours, reference = PermutedTriton(hash, CPU), PermutedReference(hash, CPU)
    x = normal(1, hash.dim)
    assert torch.equal(ours.sketch([x]), reference.sketch([x]))


def test_variants_without_signs(pair):
    ours, reference = pair
    x = normal(1, ours.hash.dim)
    for row in (None, ours.hash.rows - 1):
        hash = ours.hash.without_signs(row)
        ours, reference = PermutedTriton(hash, CPU), PermutedReference(hash, CPU)
        assert torch.equal(ours.sketch([x]), reference.sketch([x]))
        table = normal(hash.rows, hash.cols)
        assert torch.equal(ours.estimate(table), reference.estimate(table))


def test_all_that_reads_a_table(pair):
    ours, reference = pair
    dim = ours.hash.dim
    table = normal(ours.hash.rows, ours.hash.cols)
    assert torch.equal(ours.estimate(table), reference.estimate(table))
    picks = torch.arange(0, dim, 7)
    assert torch.equal(ours.query(table, picks), reference.query(table, picks))
    for k in (0, 1, dim // 3):
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
        assert torch.equal(ours.scatter(indices, values), reference.scatter(indices, values))
        values[::3] = 0.0
        assert torch.equal(ours.touched(indices, values), reference.touched(indices, values))


def test_what_rows_vote_for_has_all_that_reaches_a_threshold(pair, monkeypatch):
    ours, reference = pair
    table = normal(ours.hash.rows, ours.hash.cols)
    estimates = reference.estimate(table)
    for share in (0.02, 0.2):
        threshold = estimates.abs().sort(descending=True).values[[int(share * ours.hash.dim)]]
        expected = (estimates.abs() >= threshold).nonzero()[:, 0]
        indices = torch.zeros(ours.hash.dim, dtype=torch.int64)
        values = torch.zeros(ours.hash.dim)
        counts = ours._append_voted(indices, values, table, threshold, ours.hash.dim)
        assert counts[1] == len(expected) <= counts[0] < ours.hash.dim
        found, order = indices[: len(expected)].sort()
        assert torch.equal(found, expected)
        assert torch.equal(values[: len(expected)][order], estimates[expected])
    monkeypatch.setattr(cuda, "ROOM", 0)  # what does not fit is found by estimating everything
    found, _ = ours.candidates(table, threshold, len(expected))
    assert torch.equal(found.sort().values, expected)
    table[-1, 3] = torch.nan  # medians may pass over it, so votes say nothing
    assert ours._append_voted(indices, values, table, threshold, 1)[1] > len(indices)
