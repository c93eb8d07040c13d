"""Timing for the benchmarks: interleaved repeats, medians, and what they were measured on."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

import fetchsgd
from fetchsgd.runs.environment import commit, hardware, versions

Name = TypeVar("Name", bound=Hashable)


def medians(
    functions: Mapping[Name, Callable[[], object]], device: str, repeats: int
) -> dict[Name, float]:
    """Median seconds of each, called in turn, so that other load slows all of them alike."""
    for function in functions.values():
        function()
    times: dict[Name, list[float]] = {name: [] for name in functions}
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
    return {
        "hardware": hardware(torch.device(device)),
        **versions(),
        "fetchsgd": fetchsgd.__version__,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


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
