"""The laws of the sketch, for every kernel that can run here."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fetchsgd import CountSketch, SparseVector
from fetchsgd.sketch.count_sketch import default_block

KERNELS = ["reference", "numba", pytest.param("triton", marks=pytest.mark.gpu)]
# dim, rows, cols, block: whole and cut blocks, dims below a block, wrap-around, even rows, cols = 1
SHAPES = [
    (1000, 5, 64, 1),
    (1000, 1, 64, 4),
    (10_003, 2, 700, 64),
    (10_003, 3, 600, 32),
    (30_001, 5, 2000, 256),
    (9_000, 4, 1500, 1024),
    (7_777, 7, 900, 100),
    (50, 2, 100, 64),
    (300, 1, 64, 64),
    (10, 3, 1, 1),
    (1, 1, 1, 1),
    (400_000, 5, 3000, 16),
]


def device_of(kernel):
    return "cuda" if kernel == "triton" else "cpu"


def make(shape, kernel, seed=0):
    dim, rows, cols, block = shape
    return CountSketch(dim, rows, cols, seed, block, kernel=kernel)


def normal(*shape, device="cpu", seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def assert_close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def same(a, b):
    return torch.equal(a.indices, b.indices) and torch.equal(a.values, b.values)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
class TestLaws:
    def test_linear(self, kernel, shape):
        sketch, device = make(shape, kernel), device_of(kernel)
        x, y = normal(sketch.dim, device=device), normal(sketch.dim, device=device, seed=1)
        assert_close(sketch.sketch(2 * x - y), 2 * sketch.sketch(x) - sketch.sketch(y))

    def test_equals_the_reference(self, kernel, shape):
        sketch, reference = make(shape, kernel), make(shape, "reference")
        x = normal(sketch.dim, device=device_of(kernel))
        table = sketch.sketch(x)
        assert_close(table, reference.sketch(x))
        # Given one table, everything that follows is the same to the last bit.
        assert torch.equal(sketch.estimate(table), reference.estimate(table))
        for k in {0, 1, sketch.dim // 100, sketch.dim // 3, sketch.dim}:
            assert same(sketch.top_k(table, k), reference.top_k(table, k))
        for tau in (0.0, 0.01, 0.3):
            assert same(sketch.heavy_hitters(table, tau), reference.heavy_hitters(table, tau))
        assert sketch.l2(table) == pytest.approx(reference.l2(table), rel=1e-9)

    def test_sparse_equals_dense(self, kernel, shape):
        sketch, device = make(shape, kernel), device_of(kernel)
        dense = normal(sketch.dim, device=device)
        dense[normal(sketch.dim, device=device, seed=1) < 1] = 0
        assert_close(sketch.sketch(SparseVector.from_dense(dense)), sketch.sketch(dense))

    def test_touched_are_the_cells_of_what_is_not_zero(self, kernel, shape):
        sketch, device = make(shape, kernel), device_of(kernel)
        indices = torch.arange(0, sketch.dim, -(-sketch.dim // 30), device=device)
        values = (normal(len(indices), device=device) > -1).float()
        values[1::2] *= -1  # so that some cancel, where cells are few
        units = torch.zeros(len(indices), sketch.dim, device=device)
        units[torch.arange(len(indices)), indices] = 1.0
        expected = (sketch.sketch(units) != 0)[values != 0].any(dim=0)
        x = SparseVector(sketch.dim, indices, values)
        assert torch.equal(sketch.touched(x), expected)
        none = SparseVector(sketch.dim, indices[:0], values[:0])
        assert not sketch.touched(none).any()

    def test_pieces_equal_whole(self, kernel, shape):
        sketch, device = make(shape, kernel), device_of(kernel)
        x = normal(sketch.dim, device=device)
        cuts = sorted({0, 1, sketch.dim // 3, sketch.dim // 3 + 2, sketch.dim - 1, sketch.dim})
        cuts = [cut for cut in cuts if cut <= sketch.dim]
        pieces = [x[a:b] for a, b in zip([0, *cuts], [*cuts, sketch.dim], strict=True)]
        assert any(len(piece) == 0 for piece in pieces)
        assert torch.equal(sketch.sketch(pieces), sketch.sketch(x))

    def test_batch_equals_one_by_one(self, kernel, shape):
        sketch = make(shape, kernel)
        batch = normal(3, sketch.dim, device=device_of(kernel))
        tables = sketch.sketch(batch)
        assert tables.shape == (3, sketch.rows, sketch.cols)
        for table, x in zip(tables, batch, strict=True):
            assert_close(table, sketch.sketch(x))
        halves = [batch[:, : sketch.dim // 2], batch[:, sketch.dim // 2 :]]
        assert_close(sketch.sketch(halves, batched=True), tables)

    def test_repeats_bit_for_bit(self, kernel, shape):
        sketch = make(shape, kernel)
        x = normal(sketch.dim, device=device_of(kernel))
        table, again = sketch.sketch(x), make(shape, kernel).sketch(x)
        assert torch.equal(table, again)
        k = sketch.dim // 2
        assert same(sketch.top_k(table, k), sketch.top_k(table, k))
        assert sketch.l2(table) == sketch.l2(table)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_16_bit_input_is_widened(self, kernel, shape, dtype):
        sketch = make(shape, kernel)
        x = normal(sketch.dim, device=device_of(kernel)).to(dtype)
        table = sketch.sketch(x)
        assert table.dtype == torch.float32
        assert torch.equal(table, sketch.sketch(x.float()))

    def test_strided_input(self, kernel, shape):
        sketch = make(shape, kernel)
        x = normal(sketch.dim, 2, device=device_of(kernel))[:, 0]
        assert torch.equal(sketch.sketch(x), sketch.sketch(x.contiguous()))
        tall = normal(sketch.dim, 3, device=device_of(kernel)).T
        assert torch.equal(sketch.sketch(tall), sketch.sketch(tall.contiguous()))
        table = sketch.sketch(x)
        strided = torch.stack([table, table], dim=2)[..., 0]
        assert same(sketch.top_k(strided, 1), sketch.top_k(table, 1))

    def test_ties_go_to_the_lowest_index(self, kernel, shape):
        sketch = make(shape, kernel)
        k = min(5, sketch.dim)
        zero = sketch.zeros(device_of(kernel))
        assert sketch.top_k(zero, k).indices.tolist() == list(range(k))
        # With one row all coordinates of a cell tie.
        table = normal(sketch.rows, sketch.cols, device=device_of(kernel)).sign()
        reference = make(shape, "reference")
        for k in {1, sketch.dim // 2, sketch.dim}:
            assert same(sketch.top_k(table, k), reference.top_k(table, k))


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_empty_batch_gives_no_tables(kernel):
    sketch = CountSketch(100, 2, 10, kernel=kernel)
    assert sketch.sketch(torch.zeros(0, 100, device=device_of(kernel))).shape == (0, 2, 10)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_of_a_model_need_no_concatenation(kernel):
    device = device_of(kernel)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 3))
    model.to(device)(normal(8, 20, device=device)).square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    sketch = CountSketch(len(flat), 3, 128, block=16, kernel=kernel)
    assert torch.equal(sketch.sketch(gradients), sketch.sketch(flat))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_wide_table_recovers_a_sparse_vector_exactly(kernel):
    sketch = CountSketch(10_000, 5, 2000, block=64, kernel=kernel)
    x = torch.zeros(10_000, device=device_of(kernel))
    x[torch.tensor([3, 4, 1000, 9999])] = torch.tensor([1.0, -2.0, 3.0, -4.0]).to(x)
    assert torch.equal(sketch.top_k(sketch.sketch(x), 4).to_dense(), x)


def test_any_number_of_threads_gives_the_same_bits(restore_threads):
    sketch = CountSketch(700_001, 3, 4096 * 8)
    one = CountSketch(3_000_001, 1, 30_000, block=32)
    x, y = normal(sketch.dim), normal(one.dim)
    seen = []
    for threads in (1, 2, 3, 7, 16):
        torch.set_num_threads(threads)
        table, narrow = sketch.sketch(x), one.sketch(y)
        top, top_narrow = sketch.top_k(table, 5000), one.top_k(narrow, 5000)
        seen.append(
            [table, narrow, sketch.estimate(table), top.indices, top.values, top_narrow.indices,
             torch.tensor(sketch.l2(table))]
        )  # fmt: skip
    for other in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], other, strict=True))


def test_sums_in_the_order_of_a_plain_loop():
    """The fast sketch equals sequential float32 addition, not merely up to rounding."""
    sketch = CountSketch(20_000, 2, 50, block=8)
    x = normal(sketch.dim)
    expected = np.zeros((2, 50), dtype=np.float32)
    packed = sketch._hash.placements
    for j in range(2):
        for i, value in enumerate(x.numpy()):
            code = packed[j, i // 8]
            cell = ((code >> 1) + i % 8) % 50
            expected[j, cell] += -value if code & 1 else value
    assert np.array_equal(sketch.sketch(x).numpy(), expected)


def test_works_in_a_forked_child():
    """The thread pool of the parent does not survive a fork; the child must start its own."""
    code = """
import os, torch
from fetchsgd import CountSketch
torch.set_num_threads(2)
sketch = CountSketch(1_000_000, 2, 5000)
x = torch.randn(1_000_000)
expected = sketch.sketch(x)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(sketch.sketch(x), expected) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


@settings(max_examples=60, deadline=None)
@given(
    dim=st.integers(1, 500),
    rows=st.integers(1, 6),
    cols=st.integers(1, 80),
    data=st.data(),
)
def test_numba_equals_reference_on_any_shape(dim, rows, cols, data):
    block = data.draw(st.integers(1, cols))
    k = data.draw(st.integers(0, dim))
    seed = data.draw(st.integers(0, 2**64 - 1))
    fast = CountSketch(dim, rows, cols, seed, block, kernel="numba")
    slow = CountSketch(dim, rows, cols, seed, block, kernel="reference")
    x = normal(dim).round(decimals=1)  # rounded, for ties
    table = fast.sketch(x)
    assert_close(table, slow.sketch(x))
    assert torch.equal(fast.estimate(table), slow.estimate(table))
    assert same(fast.top_k(table, k), slow.top_k(table, k))


def test_default_block_leaves_4096_blocks_across_a_row():
    assert [default_block(c) for c in (1, 8191, 8192, 650_000, 1_240_000, 10_000_000, 2**30)] == [
        1, 1, 2, 128, 256, 1024, 1024,
    ]  # fmt: skip


def test_for_budget_is_the_widest_that_fits():
    sketch = CountSketch.for_budget(1_000_000, bytes=100_003, rows=3)
    assert sketch.rows == 3
    assert 4 * sketch.num_cells <= 100_003 < 4 * 3 * (sketch.cols + 1)
    with pytest.raises(ValueError, match="bytes must be at least 12, got 8"):
        CountSketch.for_budget(10, bytes=8, rows=3)


def test_equal_arguments_make_equal_operators():
    assert CountSketch(10, 2, 5) == CountSketch(10, 2, 5, kernel="reference")
    assert CountSketch(10, 2, 5) != CountSketch(10, 2, 5, seed=1)
    assert repr(CountSketch(10, 2, 5)) == (
        "CountSketch(dim=10, rows=2, cols=5, seed=0, block=1, hash='blocks', kernel='auto')"
    )
