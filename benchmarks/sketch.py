"""Speed and memory of the Count Sketch, as ratios to moving the vector through memory once.

    python benchmarks/sketch.py --device cpu  --out benchmarks/results/sketch-cpu.json
    python benchmarks/sketch.py --device cuda --out benchmarks/results/sketch-cuda.json

On the CPU the unit is one numpy.sum over the vector; on a GPU it is half a device-to-device copy,
which is to read the vector once at copy speed. Targets are the upper bounds that we set ourselves.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import environment, medians, report

from fetchsgd import CountSketch, SparseVector
from fetchsgd.methods.fetchsgd import SAFE_BLOCK

K = 50_000
MB = 1e6
Row = dict[str, Any]


def unit(vector: torch.Tensor) -> tuple[str, Callable[[], object], float]:
    """What everything is compared with: its name, a function, and the share of its time."""
    if vector.is_cuda:
        target = torch.empty_like(vector)
        return "copy, halved", lambda: target.copy_(vector), 0.5
    array = vector.numpy()
    return "numpy.sum", lambda: np.sum(array), 1.0


def operations(
    dim: int, cols: int, device: str, targets: dict[str, float], repeats: int
) -> list[Row]:
    """sketch and top_k with 1 and 5 rows; estimates and sparse sketches for information."""
    vector = torch.randn(dim, device=device)
    name, baseline, share = unit(vector)
    functions: dict[str, Callable[[], object]] = {name: baseline}
    for rows in (1, 5):
        sketch = CountSketch(dim, rows, cols)
        table = sketch.sketch(vector)
        update = sketch.top_k(table, K)
        functions |= {
            f"sketch r={rows}": lambda s=sketch: s.sketch(vector),
            f"top_k r={rows}": lambda s=sketch, t=table: s.top_k(t, K),
            f"estimate r={rows}": lambda s=sketch, t=table: s.estimate(t),
            f"sketch top_k r={rows}": lambda s=sketch, u=update: s.sketch(u),
        }
    pieces = list(vector.split(dim // 150))
    functions["sketch r=5 of 151 pieces"] = lambda: sketch.sketch(pieces)
    seconds = medians(functions, device, repeats)
    one = seconds[name] * share
    size = f"d={dim / 1e6:g}M c={cols / 1e6:g}M"
    return [
        {
            "what": f"{size} {what}",
            "measured": f"{taken * (share if what == name else 1) * 1e3:.3f} ms",
            "ratio": (taken * share if what == name else taken) / one,
            "target": targets.get(what),
        }
        for what, taken in seconds.items()
    ]


def small_blocks(device: str, repeats: int) -> list[Row]:
    """Blocks as short as FetchSGD's own, as a multiple of the time that longer ones take."""
    found = []
    for dim, rows, cols, k in ((6_600_000, 1, 650_000, 50_000), (1_000_000, 5, 100_000, 10_000)):
        vector = torch.randn(dim, device=device)
        functions: dict[str, Callable[[], object]] = {}
        for block in (SAFE_BLOCK, 64):
            sketch = CountSketch(dim, rows, cols, block=block)
            table = sketch.sketch(vector)
            functions[f"sketch {block}"] = lambda s=sketch, v=vector: s.sketch(v)
            functions[f"top_k {block}"] = lambda s=sketch, t=table, k=k: s.top_k(t, k)
        seconds = medians(functions, device, repeats)
        size = f"d={dim / 1e6:g}M c={cols / 1e6:g}M"
        found += [
            {
                "what": f"{size} {what} r={rows}: block {SAFE_BLOCK} / block 64",
                "measured": f"{seconds[f'{what} {SAFE_BLOCK}'] * 1e3:.3f} ms",
                "ratio": seconds[f"{what} {SAFE_BLOCK}"] / seconds[f"{what} 64"],
                "target": 2.0,
            }
            for what in ("sketch", "top_k")
        ]
    return found


def permuted(
    dim: int, cols: int, device: str, targets: dict[str, float], repeats: int
) -> list[Row]:
    """The hash without tables, with the blocks that FetchSGD would use, and a new key each call."""
    vector = torch.randn(dim, device=device)
    name, baseline, share = unit(vector)
    functions: dict[str, Callable[[], object]] = {name: baseline}
    rounds = count()
    for block, rows in product((16, 64), (1, 5)):
        sketch = CountSketch(dim, rows, cols, block=block, hash="permutation")
        table = sketch.sketch(vector)
        functions |= {
            f"sketch r={rows} B={block}": lambda s=sketch: s.sketch(vector),
            f"sketch r={rows} B={block}, new key": lambda s=sketch: s.for_round(
                next(rounds)
            ).sketch(vector),
            f"estimate r={rows} B={block}": lambda s=sketch, t=table: s.estimate(t),
            f"top_k r={rows} B={block}": lambda s=sketch, t=table: s.top_k(t, K),
        }
    seconds = medians(functions, device, repeats)
    one = seconds.pop(name) * share
    size = f"permutation d={dim / 1e6:g}M c={cols / 1e6:g}M"
    found: list[Row] = [{"what": f"{size} {name}", "measured": f"{one * 1e3:.3f} ms", "ratio": 1.0}]
    for what, taken in seconds.items():
        kind = what.split(" B=")[0]
        row: Row = {"what": f"{size} {what}", "measured": f"{taken * 1e3:.3f} ms"}
        if what.endswith("new key"):
            old = seconds[what.removesuffix(", new key")]
            row |= {"what": f"{size} {what} / old key", "ratio": taken / old, "target": 1.05}
        else:
            row |= {"ratio": taken / one, "target": targets.get(kind)}
        found.append(row)
    return found


def permuted_clients(device: str, repeats: int) -> list[Row]:
    """A batch of 100 clients at CIFAR10's size, against reading all of them once."""
    dim, cols, clients = 6_600_000, 660_000, 100
    vectors = torch.randn(clients, dim, device=device)
    name, baseline, share = unit(vectors)
    functions: dict[str, Callable[[], object]] = {name: baseline}
    for block in (16, 64):
        sketch = CountSketch(dim, 1, cols, block=block, hash="permutation")
        functions[f"B={block}"] = lambda s=sketch: s.sketch(vectors)
    seconds = medians(functions, device, repeats)
    one = seconds.pop(name) * share
    return [
        {
            "what": f"permutation d=6.6M c=0.66M sketch r=1 {what} of 100 clients",
            "measured": f"{taken * 1e3:.3f} ms",
            "ratio": taken / one,
            "target": 1.5,
        }
        for what, taken in seconds.items()
    ]


def growth(device: str, repeats: int) -> list[Row]:
    """Ten times the dim must take about ten times as long."""
    functions: dict[str, Callable[[], object]] = {}
    for dim in (100_000_000, 1_000_000_000):
        vector = torch.randn(dim, device=device)
        sketch = CountSketch(dim, 1, dim // 100)
        table = sketch.sketch(vector)
        functions[f"sketch {dim}"] = lambda s=sketch, v=vector: s.sketch(v)
        functions[f"top_k {dim}"] = lambda s=sketch, t=table: s.top_k(t, K)
    seconds = medians(functions, device, repeats)
    return [
        {
            "what": f"{what} r=1: t(1e9) / t(1e8)",
            "measured": f"{seconds[f'{what} 1000000000'] * 1e3:.2f} ms",
            "ratio": seconds[f"{what} 1000000000"] / seconds[f"{what} 100000000"],
            "target": 11.0,
        }
        for what in ("sketch", "top_k")
    ]


def memory(device: str) -> list[Row]:
    """What top_k takes beyond its inputs and its output at dim = 1e9."""
    found = []
    for rows in (1, 5):
        small = CountSketch(100_000, rows, 1000)
        small.top_k(torch.randn(rows, 1000, device=device), 100)  # compile
        sketch = CountSketch(1_000_000_000, rows, 10_000_000)
        table = torch.randn(rows, 10_000_000, device=device)
        peak = _peak_cuda if device == "cuda" else _peak_cpu
        if device == "cuda":
            sketch.top_k(table, K)  # the hash and what follows from it stay on the device
        else:
            sketch.sketch(SparseVector(sketch.dim, torch.tensor([0]), torch.ones(1)))
        extra = peak(lambda s=sketch, t=table: s.top_k(t, K))
        extra -= K * 12
        found.append(
            {
                "what": f"d=1000M c=10M top_k r={rows}: extra memory in MB",
                "measured": f"{extra / MB:.1f} MB",
                "ratio": extra / MB,
                "target": 64.0,
            }
        )
    return found


def _peak_cuda(function: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _peak_cpu(function: Callable[[], object]) -> int:
    """Growth of the resident set, by the kernel's own high-water mark."""
    ctypes.CDLL(None).malloc_trim(0)  # so that freed memory cannot hide new allocations
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    function()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def huge(device: str) -> list[Row]:
    """Seven billion bfloat16 coordinates and their top 100,000."""
    dim = 7_000_000_000
    vector = torch.randn(dim, device=device, dtype=torch.bfloat16)
    # Each shares its cell with some 100 others, so the top 100,000 reach about 1,000 cells.
    heavy = torch.arange(0, dim, dim // 500, device=device)
    vector[heavy] = 3000.0
    sketch = CountSketch(dim, 1, 70_000_000)
    seconds = medians({"sketch": lambda: sketch.sketch(vector)}, device, 3)
    table = sketch.sketch(vector)
    seconds |= medians({"top_k": lambda: sketch.top_k(table, 100_000)}, device, 3)
    found = sketch.top_k(table, 100_000)
    assert torch.isin(heavy, found.indices).all(), "a planted heavy coordinate was not found"
    return [
        {"what": f"d=7000M bfloat16 c=70M {what} r=1", "measured": f"{taken * 1e3:.1f} ms"}
        for what, taken in seconds.items()
    ]


def startup(device: str) -> list[Row]:
    """Import time beyond torch's, and the first call of a process, compiling and from the cache."""
    times: dict[str, list[float]] = {"torch": [], "torch, fetchsgd": []}
    for _ in range(3):
        for modules, taken in times.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)
            taken.append(time.perf_counter() - start)
    beyond = min(times["torch, fetchsgd"]) - min(times["torch"])
    with tempfile.TemporaryDirectory() as cache:
        compiling, cached = _first_call(device, cache), _first_call(device, cache)
    return [
        {
            "what": "import fetchsgd beyond torch, in seconds",
            "measured": f"{beyond:.3f} s",
            "ratio": beyond,
            "target": 0.3,
        },
        {"what": "first sketch and top_k ever (compiles)", "measured": f"{compiling:.2f} s"},
        {"what": "first sketch and top_k of a later process", "measured": f"{cached:.2f} s"},
    ]


def _first_call(device: str, cache: str) -> float:
    code = (
        "import time, torch; from fetchsgd import CountSketch; s = CountSketch(10**6, 5, 10**4);"
        f"x = torch.randn(10**6, device='{device}'); t = time.perf_counter();"
        "s.top_k(s.sketch(x), 100); print(time.perf_counter() - t)"
    )
    caches = {"NUMBA_CACHE_DIR": cache, "TRITON_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True,
        env=os.environ | caches,
    )  # fmt: skip
    return float(done.stdout)


CPU_TARGETS = {"sketch r=1": 3.5, "sketch r=5": 13, "top_k r=1": 5, "top_k r=5": 14}
PERMUTED_CPU_TARGETS = {"sketch r=1": 2.5, "sketch r=5": 6, "top_k r=1": 3.5, "top_k r=5": 9}
PERMUTED_GPU_TARGETS = {
    "sketch r=1": 2,
    "estimate r=1": 1.8,
    "top_k r=1": 5,
    "sketch r=5": 6,
    "top_k r=5": 9,
}
GPU_TARGETS = {"sketch r=1": 2.5, "sketch r=5": 6, "top_k r=1": 8, "top_k r=5": 12}


def blocks_on_cpu(repeats: int) -> list[Row]:
    rows = memory("cpu") + operations(124_000_000, 1_240_000, "cpu", CPU_TARGETS, repeats)
    return rows + small_blocks("cpu", 5 * repeats) + growth("cpu", 3) + startup("cpu")


def blocks_on_gpu(repeats: int) -> list[Row]:
    rows = operations(124_000_000, 1_240_000, "cuda", GPU_TARGETS, 3 * repeats)
    larger = {what: 1.2 * ratio for what, ratio in GPU_TARGETS.items()}
    rows += operations(1_000_000_000, 10_000_000, "cuda", larger, repeats)
    return rows + growth("cuda", repeats) + memory("cuda") + huge("cuda") + startup("cuda")


def permutation_on_cpu(repeats: int) -> list[Row]:
    return permuted(124_000_000, 1_240_000, "cpu", PERMUTED_CPU_TARGETS, repeats)


def permutation_on_gpu(repeats: int) -> list[Row]:
    rows = permuted(124_000_000, 1_240_000, "cuda", PERMUTED_GPU_TARGETS, 3 * repeats)
    return rows + permuted_clients("cuda", repeats)


PARTS = {
    "cpu": {"permutation": permutation_on_cpu, "blocks": blocks_on_cpu},
    "cuda": {"permutation": permutation_on_gpu, "blocks": blocks_on_gpu},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", choices=["permutation", "blocks"], help="one of the two hashes")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    rows = []
    for name, part in PARTS[options.device].items():
        if options.only in (None, name):
            rows += part(options.repeats)
    report(rows, environment(options.device) | {"load before": load}, options.out)


if __name__ == "__main__":
    main()
