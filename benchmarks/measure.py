"""Timing for the benchmarks: interleaved repeats, medians, and what they were measured on."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

import fetchsgd


def medians(
    functions: dict[str, Callable[[], object]], device: str, repeats: int
) -> dict[str, float]:
    """Median seconds of each function, called in turn so that all meet the same neighbours."""
    for function in functions.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            times[name].append(_seconds(function, device))
    return {name: statistics.median(taken) for name, taken in times.items()}


def _seconds(function: Callable[[], object], device: str) -> float:
    if device == "cpu":
        start = time.perf_counter()
        function()
        return time.perf_counter() - start
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # Let the queue run ahead of the device, so that launching is not what is timed.
    torch.cuda._sleep(2_000_000)
    before.record()
    function()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / 1e3


def environment(device: str) -> dict[str, Any]:
    """Hardware, versions and commit."""
    found = {
        "hardware": torch.cuda.get_device_name() if device == "cuda" else _cpu_name(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "fetchsgd": fetchsgd.__version__,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    if device == "cuda":
        import triton

        found["triton"] = triton.__version__
    else:
        import numba

        found["numba"] = numba.__version__
    return found


def commit() -> str:
    """The commit that was measured, with "+" when files had been changed since."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True
        )
        changed = subprocess.run(
            [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True
        )
    except OSError:
        return os.environ.get("FETCHSGD_COMMIT", "unknown")
    if head.returncode:
        return os.environ.get("FETCHSGD_COMMIT", "unknown")
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    return platform.processor()


def report(rows: list[dict[str, Any]], about: dict[str, Any], out: Path | None) -> None:
    """Print a table with a verdict per row, and write the same as JSON."""
    print(" · ".join(f"{name} {value}" for name, value in about.items()))
    widths = [max(len(str(row["what"])) for row in rows), 12, 10, 10]
    print(f"\n{'what':<{widths[0]}} {'measured':>12} {'ratio':>10} {'target':>10}")
    for row in rows:
        ratio, target = row.get("ratio"), row.get("target")
        verdict = "" if target is None else ("met" if ratio <= target else "MISSED")
        print(
            f"{row['what']:<{widths[0]}} {row['measured']:>12}"
            f" {'' if ratio is None else f'{ratio:.2f}':>10}"
            f" {'' if target is None else f'{target:g}':>10} {verdict}"
        )
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
        print(f"\nwritten to {out}")
