"""The rotation of sums modulo 2^b against copying the same numbers.

    python benchmarks/rotation.py [--device cuda] [--out benchmarks/results/rotation-cuda.json]
    python benchmarks/rotation.py --count 85000 --clients 40
    python benchmarks/rotation.py --device cuda --tune     # with other constants of kernels/cuda.py

The rotation writes into new memory, so it is compared with a copy into new memory; on a CPU, where
that is not the same, a copy into memory that is there stands beside it.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import torch
from measure import environment, medians, report

from fetchsgd.sums.kernels import kernels_for, reference
from fetchsgd.sums.layout import Layout
from fetchsgd.sums.rotation import signs_of

SIZES = {"cpu": [(1, 6_500_000)], "cuda": [(1, 6_500_000), (10, 6_500_000), (1, 124_000_000)]}
TARGETS = {"cpu": 2.0, "cuda": 1.5}
# Tried by --tune: LANES, LOG_SOME, REGISTERS and ONCE, for which a program is compiled, and more.
PROGRAMS = [
    (128, 3, 128, "evict_first"),
    (128, 3, 128, ""),
    (128, 2, 96, "evict_first"),
    (256, 3, 128, "evict_first"),
    (64, 3, 128, "evict_first"),
]
COLUMNS = [128, 256, 384, 512, 640]  # at work on a processor: LANES times PER_PROCESSOR
SPARE = [0, 1, 4, 1 << 20]  # the last: all of the first stage before the second
BEST = 10  # that are printed


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


def tuned(clients: int, count: int, repeats: int) -> list[dict[str, Any]]:
    """Both directions on a GPU, with other constants than those that are used, the best first."""
    from fetchsgd.sums.kernels import cuda

    rows, layout = torch.randn(clients, count, device="cuda"), Layout.of(count)
    signs = signs_of(layout, 5, rows.device)
    there = reference.rotate(rows, signs, layout)
    back = reference.rotate_back(there, signs, layout)
    timed = {
        "copy": lambda: rows.clone(),
        "rotate": lambda: cuda.rotate(rows, signs, layout),
        "rotate back": lambda: cuda.rotate_back(there, signs, layout),
    }
    found = []
    for program, columns, spare in product(PROGRAMS, COLUMNS, SPARE):
        if columns % program[0]:
            continue
        cuda.LANES, cuda.LOG_SOME, cuda.REGISTERS, cuda.ONCE = program
        cuda.PER_PROCESSOR, cuda.SPARE = columns // cuda.LANES, spare
        about = f"{program}, PER_PROCESSOR {cuda.PER_PROCESSOR}, SPARE {spare}"
        assert _same(timed["rotate"](), there), about
        assert _same(timed["rotate back"](), back), about
        taken = medians(timed, "cuda", repeats)
        ratios = [taken[name] / taken["copy"] for name in timed]
        found.append(
            {
                "what": f"{clients} x {count:,}: {about}",
                "measured": f"{ratios[1]:.2f} {ratios[2]:.2f}",
                "ratio": (ratios[1] + ratios[2]) / 2,
                "target": TARGETS["cuda"],
            }
        )
    return sorted(found, key=lambda row: float(row["ratio"]))[:BEST]


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--device", choices=SIZES, default="cpu")
    parser.add_argument("--repeats", type=int, help="25, or 7 with --tune")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    sizes = [(given.clients, given.count)] if given.count else SIZES[given.device]
    rows = []
    for clients, count in sizes:
        if given.tune:
            rows += tuned(clients, count, given.repeats or 7)
        else:
            rows += measured(clients, count, given.device, given.repeats or 25)
    report(rows, environment(given.device), given.out)


if __name__ == "__main__":
    main()
