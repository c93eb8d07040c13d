"""Bad input gets a sentence that names the argument, its value and what would be right."""

import math
import warnings

import pytest
import torch

from fetchsgd import CountSketch, SparseVector
from fetchsgd.sketch import kernels

SKETCH = CountSketch(100, 2, 10)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dim": 0}, ValueError, "dim must be at least 1, got 0"),
        ({"dim": 10.0}, TypeError, "dim must be a whole number, got 10.0"),
        ({"rows": 0}, ValueError, "rows must be at least 1, got 0"),
        ({"cols": 0}, ValueError, "cols must be from 1 to 1073741824, got 0"),
        ({"cols": 2**31}, ValueError, "cols must be from 1 to 1073741824, got 2147483648"),
        ({"seed": -1}, ValueError, "seed must be from 0 to 18446744073709551615, got -1"),
        ({"block": 0}, ValueError, "block must be at least 1, got 0"),
        ({"block": 11}, ValueError, "cols=10 is too small for block=11"),
        ({"dim": 2**31, "block": 1}, ValueError, "more than 2.30 blocks; use a larger block"),
        ({"kernel": "cuda"}, ValueError, "kernel='cuda' is not one of auto, reference"),
    ],
)
def test_construction(arguments, error, message):
    with pytest.raises(error, match=message):
        CountSketch(**({"dim": 100, "rows": 2, "cols": 10} | arguments))


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.zeros(99), ValueError, r"x must have shape \(100,\), or .* got \(99,\)"),
        (torch.zeros(2, 50), ValueError, r"got \(2, 50\)"),
        (torch.zeros(1, 1, 100), ValueError, r"got \(1, 1, 100\)"),
        (torch.zeros(100, dtype=torch.float64), TypeError, "all bfloat16, got float64"),
        (torch.zeros(100, dtype=torch.int64), TypeError, "got int64"),
        ([torch.zeros(60), torch.zeros(41)], ValueError, "101 elements together, not dim=100"),
        ([torch.zeros(60), torch.zeros(40).half()], TypeError, "got float16, float32"),
        (
            [torch.zeros(60), torch.zeros(40, device="meta")],
            ValueError,
            r"different devices: \['cpu', 'meta'\]",
        ),
        ([], TypeError, "list of tensors"),
        ([1.0, 2.0], TypeError, r"got a list of \['float'\]"),
        (SparseVector(7, torch.tensor([1]), torch.ones(1)), ValueError, "dim 7, but .* dim=100"),
    ],
)
def test_vectors(x, error, message):
    with pytest.raises(error, match=message):
        SKETCH.sketch(x)


def test_batches():
    with pytest.raises(ValueError, match=r"a batch must have shape \(n, 100\), got \(100,\)"):
        SKETCH.sketch(torch.zeros(100), batched=True)
    with pytest.raises(ValueError, match="differ in their first dimension"):
        SKETCH.sketch([torch.zeros(2, 50), torch.zeros(3, 50)], batched=True)


@pytest.mark.parametrize("operation", ["estimate", "l2", "top_k", "heavy_hitters"])
@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        (torch.zeros(10, 2), ValueError, r"this sketch's shape \(2, 10\), got \(10, 2\)"),
        (torch.zeros(2, 10).double(), TypeError, "table must be float32, got float64"),
        ([[0.0]], TypeError, "table must be a tensor, got list"),
    ],
)
def test_tables(operation, table, error, message):
    more = {"top_k": (1,), "heavy_hitters": (0.1,)}.get(operation, ())
    with pytest.raises(error, match=message):
        getattr(SKETCH, operation)(table, *more)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("operation", "more"), [("top_k", 1), ("heavy_hitters", 0.1)])
def test_tables_that_are_not_finite(operation, more, value):
    table = torch.zeros(2, 10)
    table[1, 3] = value
    with pytest.raises(ValueError, match=rf"table\[1, 3\] is {value} \(1 such cells\)"):
        getattr(SKETCH, operation)(table, more)


def test_large_finite_cells_are_no_error():
    table = torch.full((2, 10), 3e38)
    assert len(SKETCH.top_k(table, 5)) == 5


@pytest.mark.parametrize("k", [-1, 101])
def test_k(k):
    with pytest.raises(ValueError, match=f"k must be from 0 to 100, got {k}"):
        SKETCH.top_k(torch.zeros(2, 10), k)


@pytest.mark.parametrize("tau", [-0.1, math.nan, math.inf])
def test_tau(tau):
    with pytest.raises(ValueError, match=f"tau must be a finite number >= 0, got {tau}"):
        SKETCH.heavy_hitters(torch.zeros(2, 10), tau)


def test_a_kernel_of_another_device():
    with pytest.raises(ValueError, match="kernel='triton' cannot run on cpu"):
        CountSketch(100, 2, 10, kernel="triton").sketch(torch.zeros(100))


def test_without_numba_the_reference_runs_with_one_warning(monkeypatch):
    monkeypatch.setattr(kernels, "_missing", lambda package: package == "numba")
    kernels._warn_slow.cache_clear()
    with pytest.warns(UserWarning, match="numba is not installed, so sketches run in plain torch"):
        table = CountSketch(100, 2, 10).sketch(torch.ones(100))
    assert torch.equal(table, SKETCH.sketch(torch.ones(100)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CountSketch(100, 2, 10).sketch(torch.ones(100))
    with pytest.raises(ValueError, match="needs the package numba, which is not installed"):
        CountSketch(100, 2, 10, kernel="numba").sketch(torch.ones(100))
