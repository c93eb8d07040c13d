"""Other sizes of programs for the sketch by permutation on a GPU, one changed at a time.

    python benchmarks/tune_permuted.py

Times are multiples of reading the vector once, as in sketch.py. The sizes are those at the top of
fetchsgd/sketch/kernels/permuted/cuda.py, where the first line's are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from measure import medians

from fetchsgd import CountSketch
from fetchsgd.sketch.kernels.permuted import cuda

DIM, COLS, K = 124_000_000, 1_240_000, 50_000
CHANGES: list[dict[str, int]] = [
    {},
    {"TILE": 1024},
    {"TILE": 4096},
    {"FLIGHT": 2048},
    {"FLIGHT": 8192},
    {"PART": 4},
    {"PART": 16},
    {"SPAN": 2048},
    {"SPAN": 512},
    {"VOTED": 256},
    {"VOTED": 1024},
]


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


def cases(vector: torch.Tensor, block: int) -> dict[str, Callable[[], object]]:
    """Sketch, estimate and top_k with one row and with five."""
    found: dict[str, Callable[[], object]] = {}
    for rows in (1, 5):
        sketch = CountSketch(DIM, rows, COLS, block=block, hash="permutation")
        table = sketch.sketch(vector)
        found |= {
            f"sketch {rows}": lambda s=sketch: s.sketch(vector),
            f"estimate {rows}": lambda s=sketch, t=table: s.estimate(t),
            f"top_k {rows}": lambda s=sketch, t=table: s.top_k(t, K),
        }
    return found


def main() -> None:
    vector = torch.randn(DIM, device="cuda")
    target = torch.empty_like(vector)
    one = medians({"copy": lambda: target.copy_(vector)}, "cuda", 21)["copy"] / 2
    for block in (16, 64):
        functions = cases(vector, block)
        for changed in CHANGES:
            with sizes(changed):
                taken = medians(functions, "cuda", 7)
            times = "  ".join(f"{what} {seconds / one:5.2f}" for what, seconds in taken.items())
            print(f"B={block} {changed or 'as they are'!s:18} {times}", flush=True)


if __name__ == "__main__":
    main()
