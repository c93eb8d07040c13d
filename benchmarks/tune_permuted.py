"""Other sizes of programs for the sketch by permutation on a GPU, some changed at a time.

    python benchmarks/tune_permuted.py sketch
    python benchmarks/tune_permuted.py estimate top_k

Times are multiples of reading the vectors once, as in sketch.py. The sizes are those at the top of
fetchsgd/sketch/kernels/permuted/cuda.py, where the first line's are; what they give is compared to
the bit. A `*` is the best of its column.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from measure import medians

from fetchsgd import CountSketch, SparseVector
from fetchsgd.sketch.kernels.permuted import cuda

DIM, COLS, K = 124_000_000, 1_240_000, 50_000
CLIENTS, CLIENT_DIM, CLIENT_COLS = 100, 6_600_000, 660_000
CHANGES: dict[str, list[dict[str, int]]] = {
    "sketch": [
        {},
        {"TILE": 1024},
        {"FLIGHT": 8192},
        {"WARPS": 8},
        {"SHARED": 1},
        {"SHARED": 1, "PART": 16},
        {"SHARED": 1, "PART": 16, "TILE": 1024},
        {"SHARED": 1, "PART": 16, "WARPS": 8},
        {"SHARED": 1, "PART": 16, "READ": 1024},
    ],
    "estimate": [{}, {"SPAN": 2048}, {"SPAN": 512}, {"PART": 4}, {"PART": 16}],
    "top_k": [{}, {"VOTED": 256}, {"VOTED": 1024}, {"MARKED": 64}, {"MARKED": 256}],
}


@contextmanager
def sizes(changed: dict[str, int]) -> Iterator[None]:
    """The module's sizes, with some changed."""
    before = {name: getattr(cuda, name) for name in changed}
    for name, size in changed.items():
        setattr(cuda, name, size)
    try:
        yield
    finally:
        for name, size in before.items():
            setattr(cuda, name, size)


def cases(operation: str, vector: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The operation with one row and with five, and sketches of many clients."""
    found: dict[str, Callable[[], object]] = {}
    for block in (16, 64):
        for rows in (1, 5):
            sketch = CountSketch(DIM, rows, COLS, block=block, hash="permutation")
            table = sketch.sketch(vector)
            found[f"B={block} r={rows}"] = {
                "sketch": lambda s=sketch: s.sketch(vector),
                "estimate": lambda s=sketch, t=table: s.estimate(t),
                "top_k": lambda s=sketch, t=table: s.top_k(t, K),
            }[operation]
        if operation == "sketch":
            many = torch.randn(CLIENTS, CLIENT_DIM, device="cuda")
            small = CountSketch(CLIENT_DIM, 1, CLIENT_COLS, block=block, hash="permutation")
            found[f"B={block} clients"] = lambda s=small, x=many: s.sketch(x)
    return found


def same(a: object, b: object) -> bool:
    if isinstance(a, SparseVector) and isinstance(b, SparseVector):
        return torch.equal(a.indices, b.indices) and torch.equal(a.values, b.values)
    return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(a, b)


def tune(operation: str, vector: torch.Tensor, one: float) -> None:
    functions = cases(operation, vector)
    expected = {name: function() for name, function in functions.items()}
    per_case = {name: one * (CLIENTS * CLIENT_DIM / DIM if "clients" in name else 1)
                for name in functions}  # fmt: skip
    lines: list[tuple[str, dict[str, float]]] = []
    for changed in CHANGES[operation]:
        with sizes(changed):
            wrong = [name for name, run in functions.items() if not same(run(), expected[name])]
            taken = medians(functions, "cuda", 11)
        label = " ".join(f"{name}={size}" for name, size in changed.items()) or "as they are"
        if wrong:
            label += f" WRONG: {', '.join(wrong)}"
        lines.append((label, {name: taken[name] / per_case[name] for name in functions}))
    best = {name: min(ratios[name] for _, ratios in lines) for name in functions}
    print(f"{operation:32}" + "".join(f"{name:>13}" for name in functions))
    for label, ratios in lines:
        marks = [f"{ratio:12.2f}{'*' if ratio == best[n] else ' '}" for n, ratio in ratios.items()]
        print(f"{label:32}" + "".join(marks), flush=True)


def main() -> None:
    vector = torch.randn(DIM, device="cuda")
    target = torch.empty_like(vector)
    one = medians({"copy": lambda: target.copy_(vector)}, "cuda", 21)["copy"] / 2
    for operation in sys.argv[1:] or CHANGES:
        tune(operation, vector, one)


if __name__ == "__main__":
    main()
