"""The settings of each method for the benchmark of slow links, found in the simulator.

    python benchmarks/links/tune.py --jobs 2 --out benchmarks/results/links-tuning.json

For every method 12 settings (methods.py) on two seeds that the benchmark itself does not use. The
one is chosen that would reach the target soonest: the ledger's bytes at the rates of the links, and
8 seconds a round for Flower. A run ends at the target, or when it has taken half as long again
as the best one before it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from measure import environment
from methods import CLIENTS, DOWN, METHODS, MOST_ROUNDS, TARGET, UP, candidates, run_settings

from fetchsgd.flower.settings import read_settings
from fetchsgd.simulation import Run

SEEDS = (1, 2)
FLOWER_SECONDS = 8.0  # of a round, whatever is sent
PATIENCE = 1.5  # times the best so far


def predicted(rounds: int, up: int, down: int) -> float:
    """Seconds, all clients' bytes given; the links work at the same time."""
    return rounds * FLOWER_SECONDS + 8 * (up / UP + down / DOWN) / CLIENTS


def tried(name: str, settings: str, seed: int, limit: float) -> dict[str, Any]:
    """One run until the target; `seconds` is infinite where it is not reached."""
    config, _ = read_settings(run_settings(name, settings, seed, MOST_ROUNDS))
    run = Run(config)
    row: dict[str, Any] = {"seconds": math.inf}
    for training, _ in run.train(run.start()):
        accuracy, _ = run.evaluate(training.weights)
        up, down = training.ledger.wire_bytes
        seconds = predicted(training.round, up, down)
        row |= {"rounds": training.round, "up": up, "down": down, "accuracy": accuracy}
        if accuracy >= TARGET:
            return row | {"seconds": seconds}
        if seconds > limit:
            break
    return row


def tune(name: str) -> list[dict[str, Any]]:
    """All settings of a method, the best first."""
    torch.set_num_threads(1)
    rows, best = [], math.inf
    for settings in candidates(name):
        runs = [tried(name, settings, seed, PATIENCE * best) for seed in SEEDS]
        mean = sum(run["seconds"] for run in runs) / len(runs)
        best = min(best, mean)
        rows.append({"settings": settings, "seconds": mean, "runs": runs})
        print(f"{name}: {settings}: {mean:.0f} s, rounds {[run['rounds'] for run in runs]}")
    return sorted(rows, key=lambda row: row["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs) as pool:
        tables = dict(zip(METHODS, pool.map(tune, METHODS), strict=True))
    chosen = {name: rows[0]["settings"] for name, rows in tables.items()}
    found = {"about": environment("cpu"), "chosen": chosen, "tried": tables}
    options.out.write_text(json.dumps(found, indent=1).replace("Infinity", "null") + "\n")
    for name, settings in chosen.items():
        print(f"{name}: {settings}")


if __name__ == "__main__":
    main()
