"""Top-k when the first guess of the threshold is wrong, and how much memory it takes."""

import tracemalloc

import pytest
import torch

from fetchsgd import CountSketch
from fetchsgd.sketch.kernels import selection


@pytest.mark.parametrize("guess", [0.0, 1e-30, 0.5, 3.0, 1e30])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_any_guess_leads_to_the_exact_answer(monkeypatch, guess, rows):
    bad = lambda *_: (torch.tensor([guess]), 700)
    monkeypatch.setattr(selection, "_guess_threshold", bad)
    fast = CountSketch(5000, rows, 100, block=10, kernel="numba")
    slow = CountSketch(5000, rows, 100, block=10, kernel="reference")
    table = fast.sketch(torch.randn(5000, generator=torch.Generator().manual_seed(0)))
    for k in (1, 600, 4999):
        ours, theirs = fast.top_k(table, k), slow.top_k(table, k)
        assert torch.equal(ours.indices, theirs.indices)
        assert torch.equal(ours.values, theirs.values)


@pytest.mark.parametrize("rows", [1, 5])
def test_allocates_nothing_of_the_size_of_the_vector(rows):
    """Both for spread estimates and when all of them tie."""
    dim, k = 20_000_000, 1000
    sketch = CountSketch(dim, rows, 100_000)
    spread = torch.randn(rows, 100_000, generator=torch.Generator().manual_seed(0))
    sketch.top_k(spread, 1)
    for table in (spread, torch.ones(rows, 100_000)):
        tracemalloc.start()
        sketch.top_k(table, k)
        sketch.heavy_hitters(spread, 0.5)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < dim / 2  # bytes: an eighth of a float32 vector
