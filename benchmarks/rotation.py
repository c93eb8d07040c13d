"""The rotation of sums modulo 2^b against copying the same numbers.

    python benchmarks/rotation.py [--device cuda] [--out benchmarks/results/rotation-cuda.json]
    python benchmarks/rotation.py --count 85000 --clients 40
    python benchmarks/rotation.py --device cuda --tiles    # with other constants of kernels/cuda.py

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

from fetchsgd.sums.kernels import kernels_for
from fetchsgd.sums.layout import Layout
from fetchsgd.sums.rotation import signs_of

SIZES = {"cpu": [(1, 6_500_000)], "cuda": [(1, 6_500_000), (10, 6_500_000), (1, 124_000_000)]}
TARGETS = {"cpu": 2.0, "cuda": 1.5}


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


def with_tiles(count: int, repeats: int) -> list[dict[str, Any]]:
    """Both directions on a GPU, for other sizes of programs than those that are used."""
    from fetchsgd.sums.kernels import cuda

    rows = []
    for log_cells, warps, log_some in product((14, 15), (8, 16), (3, 4)):
        cuda.CELLS, cuda.WARPS, cuda.LOG_SOME = 1 << log_cells, warps, log_some
        for row in measured(1, count, "cuda", repeats):
            if row["target"] is not None:
                about = f"cells 2^{log_cells}, warps {warps}, rows 2^{log_some}"
                rows.append(row | {"what": f"{row['what']}, {about}"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--device", choices=SIZES, default="cpu")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    sizes = [(given.clients, given.count)] if given.count else SIZES[given.device]
    rows = []
    for clients, count in sizes:
        if given.tiles:
            rows += with_tiles(count, given.repeats)
        else:
            rows += measured(clients, count, given.device, given.repeats)
    report(rows, environment(given.device), given.out)


if __name__ == "__main__":
    main()
