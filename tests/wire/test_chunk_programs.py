"""What counts over chunks: numba's loops, and programs in Triton's interpreter or on a GPU."""

import numpy as np
import pytest
import torch
from wire.buckets import integers
from wire.chunk_reference import statistics, symbol_on_the_page

from fetchsgd.wire import chunk_statistics as module
from fetchsgd.wire.chunk_loops import extra_bits, level_of, level_symbol
from fetchsgd.wire.chunk_sizes import extra_bits_of, rank_bits, sparse_bytes
from fetchsgd.wire.chunk_statistics import Statistics, chunk_statistics

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from fetchsgd.launch import launch  # noqa: E402
from fetchsgd.wire import chunk_cuda, chunk_programs, chunk_sizes_cuda  # noqa: E402

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU the compiled kernels are tested instead"
)
DEVICES = [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=pytest.mark.gpu)]


@triton.jit
def symbols_of(out, values, count, SPAN: tl.constexpr):
    at = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    symbols = chunk_programs.level_symbol(tl.load(values + at, mask=at < count, other=0))
    tl.store(out + at, symbols, mask=at < count)


@pytest.mark.parametrize("device", DEVICES)
def test_symbols_on_a_gpu_are_those_of_the_page(device):
    """Also above 2^24, where a float would round, and up to the last of 32 bits."""
    values = integers(32)
    given = torch.tensor(values, dtype=torch.int32, device=device)
    out = torch.empty_like(given)
    launch(symbols_of, (-(-len(values) // 256),), out, given, len(values), SPAN=256)
    assert out.tolist() == [symbol_on_the_page(value) for value in values]


def test_symbols_and_extra_bits_make_the_value_again():
    for value in integers(64):
        symbol, bits = level_symbol(np.int64(value))
        assert symbol == symbol_on_the_page(value)
        assert bits == extra_bits(symbol)
        z = 2 * value if value >= 0 else -2 * value - 1
        low = np.uint64(z & (1 << bits) - 1)
        assert level_of(np.int64(symbol), low) == value


def assert_same(a: Statistics, b: Statistics):
    for name in ("counts", "values", "nonzeros", "larger"):
        assert torch.equal(getattr(a, name).cpu(), getattr(b, name).cpu()), name


def some_levels(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of nothing, of little, of stretches, of everything, and of one number at the end."""
    rng = np.random.default_rng(count)
    density = np.array([0, 0.01, 0.2, 1, 0])[:, None]
    wave = 1 + np.sin(np.arange(count) / 700)
    levels = (rng.random((5, count)) < density * wave) * np.rint(rng.normal(size=(5, count)) * 5)
    if count:
        levels[4, -1] = -70
    found = torch.from_numpy(levels).to(dtype)
    if count > 2**18:
        found[1, : 2**18] = 0  # a segment of zeros
    return found


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("count", [1, 64, 5000, 2**16 + 1, 2**18 + 700])
def test_the_loops_count_as_the_reference(count, dtype):
    levels = some_levels(count, dtype)
    expected = statistics(levels)
    found = chunk_statistics(levels)
    assert_same(found, expected)
    assert torch.equal(found.magnitude, levels.long().abs().sum(dim=1))
    wide = torch.zeros(10, 2 * count, dtype=dtype)
    wide[::2, ::2] = levels
    assert_same(chunk_statistics(wide[::2, ::2]), expected)


def on_a_gpu(levels: torch.Tensor) -> Statistics:
    """As chunk_statistics does on a GPU, wherever the levels are."""
    (rows, count), device = levels.shape, levels.device
    chunks = torch.empty(rows, module.num_chunks(count), dtype=torch.uint8, device=device)
    values = torch.zeros(rows, module.num_pages(count), 256, dtype=torch.int32, device=device)
    larger = torch.zeros(rows, dtype=torch.int64, device=device)
    chunk_cuda.count_rows(levels, chunks, values, larger)
    counts = torch.zeros(rows, 9, 65, dtype=torch.int32, device=device)
    nonzeros = torch.zeros(rows, -(-count // 2**18), dtype=torch.int32, device=device)
    chunk_cuda.count_segments(chunks, counts, nonzeros)
    return Statistics(counts, values, nonzeros, larger)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("count", "dtype"), [(1, torch.int8), (5000, torch.int32), (2**18 + 700, torch.int16)]
)
def test_the_programs_count_as_the_loops(count, dtype, device):
    levels = some_levels(count, dtype)
    expected = chunk_statistics(levels)
    assert_same(on_a_gpu(levels.to(device)), expected)
    if count < 10_000:
        wide = torch.zeros(5, 2 * count, dtype=dtype)
        wide[:, ::2] = levels
        assert_same(on_a_gpu(wide.to(device)[:, ::2]), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_statistics_on_the_gpu(dtype):
    levels = some_levels(2**18 + 700, dtype)
    assert_same(chunk_statistics(levels.cuda()), chunk_statistics(levels))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [1, 5000, 2**18 + 700])
def test_sizes_by_programs_are_those_by_torch(count, device):
    found = chunk_statistics(some_levels(count, torch.int32))
    expected = sparse_bytes(found)
    parts = (found.counts, found.values, found.nonzeros)
    moved = Statistics(*(part.to(device) for part in parts))
    sizes = chunk_sizes_cuda.sparse_bytes(
        moved, rank_bits(torch.device(device)), extra_bits_of(torch.device(device))
    )
    assert torch.allclose(sizes.cpu(), expected, rtol=1e-4)
