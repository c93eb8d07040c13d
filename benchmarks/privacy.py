"""Noise for a million cells on one core, against numpy's own normal numbers, which are not secret.

    python benchmarks/privacy.py --out benchmarks/results/privacy-cpu.json

The time is the process's, so that others on shared cores do not count. The target is half a second.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from measure import environment, report

from fetchsgd.privacy import Source, gaussian
from fetchsgd.privacy.tables import Kind, Sampler

CELLS = 1_000_000
TARGET = 0.5  # seconds
DEVIATIONS = (1, 10, 100, 8000)  # levels


def seconds(function: Callable[[], object], repeats: int) -> float:
    function()
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    source, generator = Source.secret(), np.random.Generator(np.random.Philox(0))
    functions: dict[str, Callable[[], object]] = {
        "numpy, standard_normal": lambda: generator.standard_normal(CELLS),
        "Gaussian, by a key": lambda: gaussian(torch.Size([CELLS]), 1.0, source, 1),
    }
    kinds: tuple[Kind, ...] = ("discrete_gaussian", "skellam")
    for kind in kinds:
        for deviation in DEVIATIONS:
            sampler = Sampler(kind, Fraction(deviation**2))
            functions[f"{kind}, deviation {deviation}"] = lambda s=sampler: s.draw(CELLS, source, 1)
    rows = []
    for name, function in functions.items():
        taken = seconds(function, options.repeats)
        rows.append(
            {
                "what": f"{CELLS:,} cells: {name}",
                "measured": f"{taken * 1e3:.1f} ms",
                "ratio": taken / TARGET,
                "target": None if name.startswith("numpy") else 1.0,
            }
        )
    report(rows, environment("cpu"), options.out)


if __name__ == "__main__":
    main()
