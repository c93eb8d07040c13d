"""Parts of a vector: sketched one by one, and estimated one by one."""

import pytest
import torch

from fetchsgd.sketch import CountSketch
from fetchsgd.sketch.kernels.permuted.cuda import PermutedTriton
from fetchsgd.sketch.kernels.permuted.reference import PermutedReference
from fetchsgd.sketch.permutation import Permutation

HASHES = ("blocks", "permutation")
CPU = torch.device("cpu")
BEYOND = 2**33 + 12_345  # coordinates: neither 32 bits nor 33 say which


def random(size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def spans(dim, edges):
    return list(zip([0, *edges], [*edges, dim], strict=True))


@pytest.mark.parametrize("hash", HASHES)
@pytest.mark.parametrize("kernel", ["reference", "numba"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_in_any_order_make_up_the_whole(hash, kernel, rows, dtype):
    sketch = CountSketch(5003, rows, 640, 7, 8, hash=hash, kernel=kernel)
    vector = random(5003).to(dtype)
    table = sketch.zeros()
    for first, last in reversed(spans(5003, [1, 640, 650, 3333])):
        sketch.add_part(table, vector[first:last], first)
    sketch.add_part(table, vector[:0], 17)
    torch.testing.assert_close(table, sketch.sketch(vector), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hash", HASHES)
@pytest.mark.parametrize("kernel", ["reference", "numba"])
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_estimates_of_parts_are_those_of_the_whole(hash, kernel, rows):
    sketch = CountSketch(5003, rows, 640, 7, 8, hash=hash, kernel=kernel)
    table = sketch.sketch(random(5003))
    whole, spread = sketch.estimate(table), sketch.spread(table, rows - 1)
    for first, last in [*spans(5003, [1, 640, 650, 3333]), (9, 14), (5002, 5003), (8, 8)]:
        count = last - first
        assert torch.equal(sketch.estimate_part(table, first, count), whole[first:last])
        assert torch.equal(sketch.spread_part(table, first, count, rows - 1), spread[first:last])
    some = torch.tensor([0, 640, 5002])
    assert torch.equal(sketch.spread_at(table, some, rows - 1), spread[some])


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("block", [1, 16])
def test_gpu_programs_take_parts(rows, block):
    hash = Permutation(2801, rows, 500, block, 3)
    kernels, reference = PermutedTriton(hash, CPU), PermutedReference(hash, CPU)
    vector = random(2801)[None]
    table = reference.sketch([vector])[0]
    for first, last in [(0, 300), (300, 1703), (1703, 2801)]:
        part = vector[:, first:last]
        torch.testing.assert_close(kernels.sketch([part], first), reference.sketch([part], first))
        span = range(first, last)
        assert torch.equal(kernels.estimate(table, span), reference.estimate(table, span))


@pytest.mark.parametrize("kernels", ["numba", "triton"])
def test_coordinates_beyond_32_bits(kernels):
    """Against the definition, whose numbers have 64 bits throughout."""
    hash = Permutation(BEYOND, 1, 5000, 16, 3)
    if kernels == "triton":
        fast = PermutedTriton(hash, CPU)
    else:
        fast = CountSketch(BEYOND, 1, 5000, 3, 16, hash="permutation")._on(CPU)
    reference = PermutedReference(hash, CPU)
    table = random(5000)[None]
    for first in (2**31 - 700, 2**32 - 700, BEYOND - 1400):
        span, part = range(first, first + 1400), random(1400, first)[None]
        assert torch.equal(fast.sketch([part], first), reference.sketch([part], first))
        assert torch.equal(fast.estimate(table, span), reference.estimate(table, span))
        indices = torch.arange(first, first + 1400, 13)
        assert torch.equal(fast.query(table, indices), reference.query(table, indices))
        values = random(len(indices))
        scattered = reference.scatter(indices, values)
        assert torch.equal(fast.scatter(indices, values), scattered)
        assert torch.equal(fast.touched(indices, values), scattered != 0)


def test_blocks_beyond_32_bits():
    fast, slow = (
        CountSketch(BEYOND, 1, 1 << 16, 3, 1 << 14, kernel=kernel)
        for kernel in ("numba", "reference")
    )
    for first in (2**31 - 700, 2**32 - 700, BEYOND - 1400):
        part, tables = random(1400, first), (fast.zeros(), slow.zeros())
        for sketch, table in zip((fast, slow), tables, strict=True):
            sketch.add_part(table, part, first)
        torch.testing.assert_close(*tables)
        estimates = [s.estimate_part(tables[0], first, 1400) for s in (fast, slow)]
        assert torch.equal(*estimates)


def test_mistakes():
    sketch = CountSketch(100, 1, 20, hash="permutation", block=1)
    table = sketch.zeros()
    with pytest.raises(ValueError, match="coordinates 95 to 104 go beyond the vector, whose last"):
        sketch.add_part(table, torch.zeros(10), 95)
    with pytest.raises(ValueError, match="first must be from 0 to 100, got -1"):
        sketch.estimate_part(table, -1, 5)
    with pytest.raises(ValueError, match="table must be contiguous"):
        sketch.add_part(torch.zeros(1, 40)[:, ::2], torch.zeros(10), 0)
