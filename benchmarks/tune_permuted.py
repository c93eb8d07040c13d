"""Other sizes of programs for the sketch by permutation on a GPU, some changed at a time.

    python benchmarks/tune_permuted.py sketch
    python benchmarks/tune_permuted.py estimate top_k
    python benchmarks/tune_permuted.py once REGISTERS=96     # for a profiler: each sketch once

Times are multiples of reading the vectors once, as in sketch.py. The sizes are those at the top of
fetchsgd/sketch/kernels/permuted/cuda.py, where the first line's are; what they give is compared to
the bit. A `*` is the best of its column.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from measure import medians
from tuning import Constants, changed, compile_ahead, compile_only, try_all

from fetchsgd import CountSketch, SparseVector
from fetchsgd.sketch.kernels.permuted import cuda

DIM, COLS, K = 124_000_000, 1_240_000, 50_000
CLIENTS, CLIENT_DIM, CLIENT_COLS = 100, 6_600_000, 660_000
CHANGES: dict[str, list[Constants]] = {
    "sketch": [
        {},
        {"PART": 8},
        {"PART": 32},
        {"REGISTERS": 64},
        {"REGISTERS": 80},
        {"REGISTERS": 96},
        {"FLIGHT": 16384},
        {"TILE": 1024},
        {"TILE": 1024, "REGISTERS": 64},
        {"TILE": 1024, "FLIGHT": 8192},
        {"TILE": 4096, "REGISTERS": 96},
        {"TILE": 4096, "REGISTERS": 128},
        {"WARPS": 8},
        {"WARPS": 8, "TILE": 4096},
        {"READ": 1024},
    ],
    "estimate": [{}, {"SPAN": 2048}, {"SPAN": 512}, {"LEAST": 4}, {"LEAST": 16}],
    "top_k": [{}, {"VOTED": 256}, {"VOTED": 1024}, {"MARKED": 64}, {"MARKED": 256}],
}


def sketches() -> dict[str, CountSketch]:
    return {
        f"B={block} r={rows}": CountSketch(DIM, rows, COLS, block=block, hash="permutation")
        for block in (16, 64)
        for rows in (5, 1)
    }


def cases(operation: str, vector: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The operation with one row and with five, and sketches of many clients."""
    found: dict[str, Callable[[], object]] = {}
    for name, sketch in sketches().items():
        table = sketch.sketch(vector)
        found[name] = {
            "sketch": lambda s=sketch: s.sketch(vector),
            "estimate": lambda s=sketch, t=table: s.estimate(t),
            "top_k": lambda s=sketch, t=table: s.top_k(t, K),
        }[operation]
    if operation == "sketch":
        many = torch.randn(CLIENTS, CLIENT_DIM, device="cuda")
        small = CountSketch(CLIENT_DIM, 1, CLIENT_COLS, block=16, hash="permutation")
        found["B=16 clients"] = lambda: small.sketch(many)
    return found


def compile_sketches(constants: Constants) -> None:
    """All programs that `cases("sketch")` runs."""
    with changed(cuda, constants | {"launch": compile_only}):
        for sketch in sketches().values():
            sketch.sketch(torch.empty(DIM, device="cuda"))
        small = CountSketch(CLIENT_DIM, 1, CLIENT_COLS, block=16, hash="permutation")
        small.sketch(torch.empty(2, CLIENT_DIM, device="cuda"))


def same(a: object, b: object) -> bool:
    if isinstance(a, SparseVector) and isinstance(b, SparseVector):
        return torch.equal(a.indices, b.indices) and torch.equal(a.values, b.values)
    return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(a, b)


def tune(operation: str, vector: torch.Tensor, one: float) -> None:
    if operation == "sketch":
        compile_ahead(compile_sketches, CHANGES[operation])
    functions = cases(operation, vector)
    expected = {name: function() for name, function in functions.items()}
    units = {name: one * (CLIENTS * CLIENT_DIM / DIM if "clients" in name else 1)
             for name in functions}  # fmt: skip
    try_all(
        operation, cuda, CHANGES[operation], functions, units,
        lambda name, got: same(got, expected[name]), 15,
    )  # fmt: skip


def main() -> None:
    vector = torch.randn(DIM, device="cuda")
    if sys.argv[1:2] == ["once"]:
        given = dict(argument.split("=") for argument in sys.argv[2:])
        with changed(cuda, {name: int(value) for name, value in given.items()}):
            for sketch in sketches().values():
                sketch.sketch(vector)
        torch.cuda.synchronize()
        return
    target = torch.empty_like(vector)
    one = medians({"copy": lambda: target.copy_(vector)}, "cuda", 21)["copy"] / 2
    for operation in sys.argv[1:] or CHANGES:
        tune(operation, vector, one)


if __name__ == "__main__":
    main()
