"""Which of more than 2^33 coordinates are the largest: neither 32 bits nor 33 say which.

A walk over all of them takes a GPU. Elsewhere the walks go over some spans alone, around 2^31 and
2^32 and at the end, with the numbers that they have in a whole walk.
"""

from __future__ import annotations

import pytest
import torch

from fetchsgd.sketch import CountSketch
from fetchsgd.sketch.hashing import BlockHash
from fetchsgd.sketch.kernels import cuda_selection
from fetchsgd.sketch.kernels.cuda import TritonKernels
from fetchsgd.sketch.kernels.permuted import cuda as permuted_cuda
from fetchsgd.sketch.kernels.permuted.cuda import PermutedTriton
from fetchsgd.sketch.permutation import Permutation

CPU = torch.device("cpu")
BEYOND = 2**33 + 12_345
EDGES = (2**31, 2**32, BEYOND - 1)
# Long blocks, so that their table of places is small.
HASHES = {"blocks": (1 << 16, 1 << 14), "permutation": (5_000, 16)}
LEVEL = 1.5  # that some estimates reach
PART = 1 << 27


def random_table(rows, cols, device=CPU):
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(rows)).to(device)


def kernels_of(hash, rows):
    """Of the GPU, in Triton's interpreter."""
    cols, block = HASHES[hash]
    if hash == "blocks":
        return TritonKernels(BlockHash(BEYOND, rows, cols, block, 3), CPU)
    return PermutedTriton(Permutation(BEYOND, rows, cols, block, 3), CPU)


def walk_over(monkeypatch, programs, some):
    """Let walks be those of some programs, by their numbers; the others find nothing."""
    from triton.runtime.interpreter import interpreter_builder

    def place(x, _y, _z):
        interpreter_builder.grid_idx = (some[x], 0, 0)

    def launch(program, grid, first, *arguments):
        assert max(some) < grid[0]
        if program is programs.count_reached:
            first.zero_()
        with monkeypatch.context() as patched:
            patched.setattr(interpreter_builder, "set_grid_idx", place)
            program[(len(some),)](first, *arguments)

    monkeypatch.setattr(cuda_selection, "launch", launch)


def spans_around(unit):
    """Coordinates of whole units of a walk, around each edge."""
    firsts = [(edge - unit) // unit * unit for edge in EDGES]
    return [range(first, min(first + 2 * unit, BEYOND)) for first in firsts]


def reached(sketch, table, spans):
    """What is there, in order, by the definition."""
    indices = torch.cat([torch.arange(span.start, span.stop) for span in spans])
    values = sketch.query(table, indices)
    at_least = values.abs() >= LEVEL
    return indices[at_least], values[at_least]


def check_walks(kernels, reference, table, spans):
    indices, values = reached(reference, table, spans)
    assert len(indices) > 50
    assert len(indices) < sum(map(len, spans))
    found = kernels.collect(table, LEVEL, len(indices))
    assert torch.equal(found.indices, indices)
    assert torch.equal(found.values, values)
    listed = kernels.candidates(table, torch.tensor([LEVEL]), 1 << 17)
    order = listed[0].argsort()
    assert torch.equal(listed[0][order], indices)
    assert torch.equal(listed[1][order], values)


def sketch_of(hash, rows, kernel):
    cols, block = HASHES[hash]
    return CountSketch(BEYOND, rows, cols, 3, block, hash=hash, kernel=kernel)


@pytest.mark.skipif(torch.cuda.is_available(), reason="programs are compiled, not interpreted")
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("hash", HASHES)
def test_gpu_programs_find_what_is_there(hash, rows, monkeypatch):
    kernels = kernels_of(hash, rows)
    if hash == "blocks":
        spans = spans_around(512)
        some = sorted({at // 512 for span in spans for at in span})
    else:
        spans = spans_around(kernels.hash.width * kernels.hash.block)
        some = sorted({kernels._program_of(at) for span in spans for at in span})
        # Votes are on all coordinates, which takes a GPU: estimate everything instead.
        monkeypatch.setattr(permuted_cuda, "ROOM", BEYOND)
    walk_over(monkeypatch, kernels.programs, some)
    table = random_table(rows, kernels.hash.cols)
    check_walks(kernels, sketch_of(hash, rows, "reference"), table, spans)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("hash", HASHES)
def test_loops_on_a_cpu_find_what_is_there(hash, rows, monkeypatch):
    kernels = sketch_of(hash, rows, "numba")._on(CPU)
    block = kernels.hash.block
    spans = spans_around(block if hash == "blocks" else 1024)
    chunks = spans
    if hash == "blocks":  # whose walks count blocks
        chunks = [range(span.start // block, -(-span.stop // block)) for span in spans]
    monkeypatch.setattr(kernels, "_chunks", lambda: chunks)
    table = random_table(rows, kernels.hash.cols)
    check_walks(kernels, sketch_of(hash, rows, "reference"), table, spans)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("hash", HASHES)
def test_top_k_of_all(hash, rows):
    """Against estimates part by part, which others compare with the definition."""
    sketch, device = sketch_of(hash, rows, "triton"), torch.device("cuda")
    table = random_table(rows, sketch.cols, device)
    level = float(table.abs().max()) if rows == 1 else 3.0
    expected = []
    for first in range(0, BEYOND, PART):
        part = sketch.estimate_part(table, first, min(PART, BEYOND - first))
        expected.append((part.abs() >= level).nonzero().squeeze(1) + first)
    indices = torch.cat(expected)
    assert int(indices[-1]) > 2**33 - 2**20
    found = sketch.top_k(table, len(indices))
    assert torch.equal(found.indices, indices)
    assert torch.equal(found.values, sketch.query(table, indices))
