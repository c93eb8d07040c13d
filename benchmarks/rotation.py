"""The rotation of sums modulo 2^b against reading and copying the same numbers.

python benchmarks/rotation.py [--count 6500000] [--clients 1] [--device cuda]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from fetchsgd.sums.kernels import kernels_for, reference
from fetchsgd.sums.layout import Layout
from fetchsgd.sums.rotation import signs_of


def best(work: Callable[[], object], device: torch.device, times: int = 7) -> float:
    """Milliseconds of the fastest of several calls; the first, which compiles, does not count."""
    work()
    found = []
    for _ in range(times):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        found.append(time.perf_counter() - began)
    return 1e3 * min(found)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=6_500_000)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    device = torch.device(given.device)
    rows = torch.randn(given.clients, given.count, device=device)
    layout = Layout.of(given.count)
    signs, kernels = signs_of(layout, 5, device), kernels_for(device)
    cells = kernels.rotate(rows, signs, layout)
    out = torch.empty_like(rows)
    timed = {
        "sum": lambda: rows.sum(),
        "copy": lambda: out.copy_(rows),
        "signs": lambda: signs_of(layout, 5, device),
        "rotate": lambda: kernels.rotate(rows, signs, layout),
        "rotate back": lambda: kernels.rotate_back(cells, signs, layout),
        "reference": lambda: reference.rotate(rows, signs, layout),
    }
    print(f"{given.clients} x {given.count} numbers, {layout.blocks} blocks of {layout.block}")
    print(f"{'':12} {'ms':>9} {'/ copy':>8} {'/ sum':>8}")
    taken = {name: best(work, device) for name, work in timed.items()}
    for name, ms in taken.items():
        print(f"{name:12} {ms:9.3f} {ms / taken['copy']:8.1f} {ms / taken['sum']:8.1f}")


if __name__ == "__main__":
    main()
