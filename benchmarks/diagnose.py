"""What `train.diagnose` costs, as a share of the same rounds without it.

    python benchmarks/diagnose.py --device cpu  --out benchmarks/results/diagnose-cpu.json
    python benchmarks/diagnose.py --device cuda --out benchmarks/results/diagnose-cuda.json

A timing covers all rounds from one measurement of all quantities to the next, since rounds that
measure cost more than others. Runs with and without diagnosis take their rounds in turn. On a CPU
it is the time of the process, so that others on shared cores do not count. `exact` carries dense
momentum and error beside FetchSGD, as for models up to 2^24 weights; `estimated` does not. The work
is that of benchmarks/rounds.py: digits on a CPU, a network of ResNet9's size on a GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_WAIT_POLICY"] = "passive"  # as benchmarks/rounds.py says; before torch is loaded

from measure import environment, medians, report
from rounds import WORK, set_up, take

from fetchsgd.diagnose import Diagnosed
from fetchsgd.simulation import Run

TARGET = 1.05
CASES = {  # name: method, options of its own, exact
    "fetchsgd": ("fetchsgd", (), True),
    "fetchsgd, paper, r=1, exact": ("fetchsgd", ("hash=fixed",), True),
    "fetchsgd, paper, r=1, estimated": ("fetchsgd", ("hash=fixed",), False),
    "fetchsgd, paper, r=5, exact": ("fetchsgd", ("hash=fixed", "rows=5"), True),
    "fetchsgd, paper, r=5, estimated": ("fetchsgd", ("hash=fixed", "rows=5"), False),
    "true_topk": ("true_topk", (), False),
}


def rounds_of(run: Run) -> Iterator[object]:
    """A run's rounds. Its notes are dropped from time to time, as an evaluation does."""
    for step in run.train(run.start()):
        if run.diagnosis is not None and run.diagnosis.round % 100 == 0:
            run.diagnosis.book.pages.clear()
        yield step


def with_and_without(name: str, device: str) -> tuple[dict[str, Callable[[], object]], int]:
    """Functions that take the rounds between two measurements, and how many these are."""
    method, own, exact = CASES[name]
    work = WORK[device]
    settings = work.settings + (work.fetchsgd if method == "fetchsgd" else work.topk) + own
    plain = set_up(work.task, method, device, work.cohort, settings)
    watched = set_up(work.task, method, device, work.cohort, (*settings, "diagnose=true"))
    assert watched.diagnosis is not None
    if not exact:
        estimating(watched)
    count = watched.diagnosis.sums.period
    assert count % watched.diagnosis.every == 0
    taken = {"plain": rounds_of(plain), "diagnosed": rounds_of(watched)}
    return {name: partial(take, rounds, count) for name, rounds in taken.items()}, count


def estimating(run: Run) -> None:
    """As if the model were too large for dense vectors."""
    assert run.diagnosis is not None
    train = run.config.train
    run.method = run.diagnosis = Diagnosed(
        run.diagnosis.method, train.diagnose_every, train.diagnose_window, exact=False
    )
    run.cohort = replace(run.cohort, method=run.method)


def process_medians(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """As `medians`, by the CPU time of this process."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            before = time.process_time()
            function()
            taken[name].append(time.process_time() - before)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def measured(name: str, device: str, repeats: int) -> dict[str, Any]:
    functions, count = with_and_without(name, device)
    on_cpu = device == "cpu"
    seconds = process_medians(functions, repeats) if on_cpu else medians(functions, device, repeats)
    ratio = seconds["diagnosed"] / seconds["plain"]
    return {
        "what": f"{WORK[device].task} n={WORK[device].cohort}: {name}",
        "measured": f"{seconds['diagnosed'] / count * 1e3:.2f} ms",
        "ratio": ratio,
        "target": TARGET,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    rows = [measured(name, options.device, options.repeats) for name in CASES]
    report(rows, environment(options.device) | {"load before": load}, options.out)


if __name__ == "__main__":
    main()
