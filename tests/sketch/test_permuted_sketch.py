"""The laws of the sketch by permutation: every kernel gives the bits of the reference."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fetchsgd import CountSketch, SparseVector
from fetchsgd.sketch.permutation import locate

KERNELS = ["numba", pytest.param("triton", marks=pytest.mark.gpu)]
# dim, rows, cols, block: whole and cut blocks, cells that are not used, a cell for each coordinate,
# one column, many groups, even rows, more rows than a median is compiled for
SHAPES = [
    (1000, 5, 64, 1),
    (1000, 1, 64, 4),
    (10_003, 2, 700, 64),
    (10_003, 3, 600, 32),
    (30_001, 5, 2000, 256),
    (9_000, 4, 1500, 1024),
    (3000, 1, 3000, 64),
    (50, 2, 100, 64),
    (300, 1, 64, 64),
    (10, 3, 1, 1),
    (1, 1, 1, 1),
    (400_000, 5, 3000, 16),
    (2_000, 66, 131, 4),
]


def device_of(kernel):
    return "cuda" if kernel == "triton" else "cpu"


def make(shape, kernel, seed=3):
    dim, rows, cols, block = shape
    return CountSketch(dim, rows, cols, seed, block, hash="permutation", kernel=kernel)


def normal(*shape, device="cpu", seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def same(a, b):
    return torch.equal(a.indices, b.indices) and torch.equal(a.values, b.values)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
class TestLaws:
    def test_tables(self, kernel, shape):
        ours, reference = make(shape, kernel), make(shape, "reference")
        x = normal(3, ours.dim, device=device_of(kernel))
        expected = reference.sketch(x)
        assert torch.equal(ours.sketch(x), expected)
        for one, table in zip(x, expected, strict=True):
            assert torch.equal(ours.sketch(one), table)
        assert torch.equal(ours.fold(x), reference.fold(x))
        assert torch.equal(ours.with_seed(9).sketch(x), reference.with_seed(9).sketch(x))

    def test_pieces_equal_whole(self, kernel, shape):
        sketch = make(shape, kernel)
        x = normal(2, sketch.dim, device=device_of(kernel))
        cuts = sorted({0, 1, sketch.dim // 3, sketch.dim // 3 + 2, sketch.dim - 1, sketch.dim})
        cuts = [cut for cut in cuts if cut <= sketch.dim]
        pieces = [x[:, a:b] for a, b in zip([0, *cuts], [*cuts, sketch.dim], strict=True)]
        assert torch.equal(sketch.sketch(pieces, batched=True), sketch.sketch(x))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_16_bit_input_is_widened(self, kernel, shape, dtype):
        sketch = make(shape, kernel)
        x = normal(sketch.dim, device=device_of(kernel)).to(dtype)
        assert torch.equal(sketch.sketch(x), sketch.sketch(x.float()))
        assert torch.equal(sketch.sketch([x[:1], x[1:]]), sketch.sketch(x))

    def test_strided_input(self, kernel, shape):
        sketch = make(shape, kernel)
        tall = normal(sketch.dim, 3, device=device_of(kernel)).T
        assert torch.equal(sketch.sketch(tall), sketch.sketch(tall.contiguous()))
        shifted = normal(sketch.dim + 1, device=device_of(kernel))[1:]  # not aligned
        assert torch.equal(sketch.sketch(shifted), sketch.sketch(shifted.clone()))

    def test_linear(self, kernel, shape):
        sketch, device = make(shape, kernel), device_of(kernel)
        x, y = normal(sketch.dim, device=device), normal(sketch.dim, device=device, seed=1)
        both = 2 * sketch.sketch(x) - sketch.sketch(y)
        torch.testing.assert_close(sketch.sketch(2 * x - y), both, rtol=1e-4, atol=1e-4)

    def test_what_is_read_from_a_table(self, kernel, shape):
        ours, reference = make(shape, kernel), make(shape, "reference")
        table = normal(ours.rows, ours.cols, device=device_of(kernel))
        estimates = reference.estimate(table)
        assert torch.equal(ours.estimate(table), estimates)
        picks = torch.arange(0, ours.dim, 7, device=table.device)
        assert torch.equal(ours.query(table, picks), estimates[picks])
        for k in {0, 1, ours.dim // 100, ours.dim // 3, ours.dim}:
            assert same(ours.top_k(table, k), reference.top_k(table, k))
        for tau in (0.0, 0.01, 0.3):
            assert same(ours.heavy_hitters(table, tau), reference.heavy_hitters(table, tau))
        assert ours.l2(table) == pytest.approx(reference.l2(table), rel=1e-9)
        for row in {0, ours.rows - 1}:
            assert torch.equal(ours.spread(table, row), reference.spread(table, row))

    def test_ties_go_to_the_lowest_index(self, kernel, shape):
        ours, reference = make(shape, kernel), make(shape, "reference")
        signs = normal(ours.rows, ours.cols, device=device_of(kernel)).sign()
        for table in (signs, torch.zeros_like(signs)):
            for k in {1, ours.dim // 2, ours.dim}:
                assert same(ours.top_k(table, k), reference.top_k(table, k))

    def test_sparse_vectors(self, kernel, shape):
        ours, reference = make(shape, kernel), make(shape, "reference")
        dense = normal(ours.dim, device=device_of(kernel))
        dense[normal(ours.dim, device=dense.device, seed=1) < 1] = 0
        x = SparseVector.from_dense(dense)
        table = ours.sketch(x)
        assert torch.equal(table, reference.sketch(x))
        torch.testing.assert_close(table, ours.sketch(dense), rtol=1e-4, atol=1e-4)
        x.values[::3] = 0
        assert torch.equal(ours.touched(x), reference.touched(x))
        none = SparseVector(ours.dim, x.indices[:0], x.values[:0])
        assert not ours.touched(none).any()
        assert not ours.sketch(none).any()


@settings(max_examples=60, deadline=None)
@given(
    dim=st.integers(1, 500),
    rows=st.integers(1, 6),
    cols=st.integers(1, 80),
    data=st.data(),
)
def test_numba_equals_reference_on_any_shape(dim, rows, cols, data):
    block = 1 << data.draw(st.integers(0, cols.bit_length() - 1))
    k = data.draw(st.integers(0, dim))
    seed = data.draw(st.integers(0, 2**64 - 1))
    fast, slow = (make((dim, rows, cols, block), name, seed) for name in ("numba", "reference"))
    x = normal(dim).round(decimals=1)  # rounded, for ties
    table = fast.sketch(x)
    assert torch.equal(table, slow.sketch(x))
    assert torch.equal(fast.estimate(table), slow.estimate(table))
    assert same(fast.top_k(table, k), slow.top_k(table, k))


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_any_number_of_threads_gives_the_same_bits(rows, restore_threads):
    sketch = make((700_001, rows, 9000, 16), "numba")
    x = normal(2, sketch.dim)
    expected = sketch.sketch(x), sketch.sketch(x[0].half()), sketch.sketch(x[1])
    for threads in (2, 3, 7):
        torch.set_num_threads(threads)
        found = sketch.sketch(x), sketch.sketch(x[0].half()), sketch.sketch(x[1])
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert same(sketch.top_k(found[2], 5000), make_reference(sketch).top_k(found[2], 5000))


def make_reference(sketch):
    shape = sketch.dim, sketch.rows, sketch.cols, sketch.block
    return make(shape, "reference", sketch.seed)


def test_sums_are_those_of_two_plain_loops():
    """Each half of a cell's coordinates in float32, one after another, then both together."""
    sketch = make((20_000, 2, 50, 8), "numba")
    x = normal(sketch.dim)
    half = sketch._hash.half
    assert half == 417 // 2 * 48  # of 417 groups of 6 blocks
    expected = np.zeros((2, 2, 50), dtype=np.float32)
    for row in range(2):
        cells, signs = locate(sketch._hash, torch.arange(sketch.dim), row)
        signed = (x * signs).numpy()
        for i, cell in enumerate(cells.tolist()):
            expected[int(i >= half), row, cell] += signed[i]
    assert np.array_equal(sketch.sketch(x).numpy(), expected[0] + expected[1])


def test_fold_and_spread_share_out_what_a_cell_holds():
    """A coordinate's share of its cell, for both hashes: shares of a cell add up to one."""
    for hash in ("blocks", "permutation"):
        sketch = CountSketch(5000, 2, 300, block=4, hash=hash)
        weights = normal(5000).square()
        folded = sketch.fold(weights)
        for row in range(2):
            share = weights / sketch.spread(folded, row)
            assert share.max() <= 1 + 1e-5
            torch.testing.assert_close(sketch.fold(share)[row].sum(), (folded[row] > 0).sum() * 1.0)
        # Without signs every coordinate counts as it is.
        torch.testing.assert_close(folded.sum(dim=1), weights.sum().expand(2))


@pytest.mark.parametrize("rows", [1, 5])
def test_allocates_nothing_of_the_size_of_the_vector(rows):
    """Fresh keys included: beside its output a call takes one row for each thread, and chunks."""
    dim, cols = 20_000_000, 100_000
    sketch = CountSketch(dim, rows, cols, block=64, hash="permutation")
    x, table = torch.zeros(dim), normal(rows, cols)
    sketch.top_k(sketch.sketch(x) + table, 1000)
    for round in range(3):
        tracemalloc.start()
        fresh = sketch.for_round(round)
        fresh.sketch(x)
        fresh.top_k(table, 1000)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 * cols * (rows + 2) + (12 << 20)  # bytes; the vector takes 80 MB


@pytest.mark.gpu
def test_a_new_key_compiles_nothing_and_takes_no_memory():
    from fetchsgd.sketch.kernels.permuted import gather_programs

    sketch = CountSketch(10_000_000, 1, 100_000, block=16, hash="permutation")
    x = normal(sketch.dim, device="cuda")
    sketch.sketch(x)
    compiled = [len(cache) for cache in _caches(gather_programs.gather)]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for seed in (0, 1, 16, 2**31, 2**63, 2**64 - 1):
        sketch.with_seed(seed).sketch(x)
    assert [len(cache) for cache in _caches(gather_programs.gather)] == compiled
    assert torch.cuda.max_memory_allocated() - before < 4 * 4 * sketch.cols


def _caches(program):
    return [entry[0] for entry in program.device_caches.values()]


def test_every_round_has_its_own_hash_whatever_was_asked_before():
    sketch, x = CountSketch(1000, 1, 50, hash="permutation"), normal(1000)
    assert sketch.for_round(3) is sketch.for_round(3)
    for round in (3, 4, 4, 3, 0):
        seed = sketch.for_round(round).seed
        assert torch.equal(sketch.for_round(round).sketch(x), sketch.with_seed(seed).sketch(x))
    assert len({sketch.for_round(round).seed for round in range(10)}) == 10


def test_mistakes_get_a_sentence():
    with pytest.raises(ValueError, match="block=12 is not a power of two.*use block=8 or block=No"):
        CountSketch(100, 1, 50, block=12, hash="permutation")
    with pytest.raises(ValueError, match="are 2000000000 groups, more than 2.30; use more cols"):
        CountSketch(10**9, 2, 1, hash="permutation")
    with pytest.raises(ValueError, match="hash='md5' is not one of blocks, permutation"):
        CountSketch(100, 1, 50, hash="md5")
    with pytest.raises(ValueError, match="row must be from 0 to 1, got 2"):
        CountSketch(100, 2, 50).spread(torch.zeros(2, 50), 2)
    with pytest.raises(ValueError, match="round must be from 0"):
        CountSketch(100, 2, 50).for_round(-1)


def test_equal_arguments_make_equal_operators():
    permuted = CountSketch(10, 2, 5, hash="permutation")
    assert permuted == CountSketch(10, 2, 5, hash="permutation", kernel="reference")
    assert permuted != CountSketch(10, 2, 5)
    assert permuted.for_budget(10, 40, hash="permutation") == CountSketch(
        10, 1, 10, hash="permutation"
    )


def test_works_in_a_forked_child():
    code = """
import os, torch
from fetchsgd import CountSketch
torch.set_num_threads(2)
sketch = CountSketch(1_000_000, 1, 5000, hash="permutation")
x = torch.randn(1_000_000)
expected = sketch.sketch(x)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(sketch.sketch(x), expected) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)
