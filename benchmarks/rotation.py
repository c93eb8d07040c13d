"""The rotation of sums modulo 2^b against copying the same numbers.

    python benchmarks/rotation.py [--device cuda] [--out benchmarks/results/rotation-cuda.json]
    python benchmarks/rotation.py --count 85000 --clients 40
    python benchmarks/rotation.py --device cuda --set LANES=64      # a constant of kernels/cuda.py
    python benchmarks/rotation.py --device cuda --tune             # many of them, each checked

The rotation writes into new memory, so it is compared with a copy into new memory; on a CPU, where
that is not the same, a copy into memory that is there stands beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import environment, medians, report
from tuning import Constants, changed, compile_ahead, compile_only, try_all

from fetchsgd.sums.kernels import kernels_for, reference
from fetchsgd.sums.layout import Layout
from fetchsgd.sums.rotation import signs_of

SIZES = {"cpu": [(1, 6_500_000)], "cuda": [(1, 6_500_000), (10, 6_500_000), (1, 124_000_000)]}
TARGETS = {"cpu": 2.0, "cuda": 1.5}
# Tried by --tune; what is not named is as in kernels/cuda.py.
TRIED: list[Constants] = [
    {},
    {"SPARE": 0},
    {"SPARE": 4},
    {"LOG_SOME": 2},
    {"LOG_SOME": 4},
    {"PER_PROCESSOR": 4},
    {"PER_PROCESSOR": 5},
    {"PER_PROCESSOR": 6, "REGISTERS": 80},
    {"LANES": 64, "PER_PROCESSOR": 6},
    {"LANES": 64, "PER_PROCESSOR": 8},
    {"LANES": 64, "PER_PROCESSOR": 12, "REGISTERS": 80},
    {"LANES": 32, "PER_PROCESSOR": 16},
]


def measured(clients: int, count: int, device: str, repeats: int) -> list[dict[str, Any]]:
    rows = torch.randn(clients, count, device=device)
    layout, kernels = Layout.of(count), kernels_for(torch.device(device))
    signs = signs_of(layout, 5, rows.device)
    cells, there = kernels.rotate(rows, signs, layout), torch.empty_like(rows)
    timed = {
        "copy": lambda: rows.clone(),
        "copy into memory that is there": lambda: there.copy_(rows),
        "signs": lambda: signs_of(layout, 5, rows.device),
        "rotate": lambda: kernels.rotate(rows, signs, layout),
        "rotate back": lambda: kernels.rotate_back(cells, signs, layout),
    }
    taken = medians(timed, device, repeats)
    size = f"{clients} x {count:,}"
    return [
        {
            "what": f"{name}, {size}",
            "measured": f"{1e3 * seconds:.3f} ms",
            "ratio": seconds / taken["copy"],
            "target": TARGETS[device] if name.startswith("rotate") else None,
        }
        for name, seconds in taken.items()
    ]


def compile_rotations(constants: Constants) -> None:
    """The programs of both directions; which do not depend on the size."""
    from fetchsgd.sums.kernels import cuda

    clients, count = SIZES["cuda"][0]
    rows, layout = torch.empty(clients, count, device="cuda"), Layout.of(count)
    signs = torch.empty(layout.words, dtype=torch.int32, device="cuda")
    with changed(cuda, constants | {"launch": compile_only}):
        cells = cuda.rotate(rows, signs, layout)
        cuda.rotate_back(cells, signs, layout)


def tune(sizes: list[tuple[int, int]], repeats: int) -> None:
    """Both directions on a GPU with other constants than those that are used, in copies."""
    from fetchsgd.sums.kernels import cuda

    compile_ahead(compile_rotations, TRIED)
    functions: dict[str, Callable[[], torch.Tensor]] = {}
    expected: dict[str, torch.Tensor] = {}
    units: dict[str, float] = {}
    for clients, count in sizes:
        rows, layout = torch.randn(clients, count, device="cuda"), Layout.of(count)
        signs = signs_of(layout, 5, rows.device)
        there = reference.rotate(rows, signs, layout)
        copy = medians({"copy": lambda x=rows: x.clone()}, "cuda", 25)["copy"]
        rotate, back = partial(cuda.rotate, rows), partial(cuda.rotate_back, there)
        for name, function, right in (
            (f"{clients}x{count / 1e6:g}M", rotate, there),
            (f"{clients}x{count / 1e6:g}M back", back, reference.rotate_back(there, signs, layout)),
        ):
            functions[name] = partial(function, signs, layout)
            expected[name], units[name] = right, copy
    try_all(
        "times a copy", cuda, TRIED, functions, units,
        lambda name, got: isinstance(got, torch.Tensor) and _same(got, expected[name]), repeats,
    )  # fmt: skip


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--device", choices=SIZES, default="cpu")
    parser.add_argument("--repeats", type=int, help="25, or 15 with --tune")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], help="constants of kernels/cuda.py")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    sizes = [(given.clients, given.count)] if given.count else SIZES[given.device]
    if given.tune:
        tune(sizes, given.repeats or 15)
        return
    if given.set:
        from fetchsgd.sums.kernels import cuda

        for assignment in given.set:
            name, value = assignment.split("=")
            setattr(cuda, name, int(value))
    rows = []
    for clients, count in sizes:
        rows += measured(clients, count, given.device, given.repeats or 25)
    report(rows, environment(given.device), given.out)


if __name__ == "__main__":
    main()
