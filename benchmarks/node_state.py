"""What a client's state costs per message: in Flower's memory, or in a folder of the node.

    python benchmarks/node_state.py --out benchmarks/results/node-state-cpu.json

A real SuperLink and one SuperNode on this machine, a model of 25 million weights, some rounds for
each form in turn. Seconds are the lifetime of the ClientApp's process, which Flower starts for
every message; its first two messages have no state yet and do not count. Failures are messages
that Flower gave up: a ClientApp that has not handed over its state five seconds after its work is
ended by force, and what the SuperNode is asked next fails as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from measure import environment
from torch import nn

from fetchsgd.flower.processes import Federation, words
from fetchsgd.tasks import ClientData, Task, cross_entropy, is_correct

APP = Path(__file__).parents[1] / "examples/flower_app"
WIDTH = 5000
LIMIT = 900.0  # seconds
FORKED = 0.5  # seconds: shorter lives are of processes seen between fork and exec, no ClientApps


def wide(seed: int = 0) -> Task:  # noqa: ARG001
    """Four examples that are all zeros, for a model of WIDTH² weights and WIDTH biases."""
    inputs, targets = torch.zeros(4, WIDTH), torch.zeros(4, dtype=torch.int64)
    return Task(
        name="wide",
        train=ClientData(inputs, targets, np.array([0, 4])),
        test_inputs=inputs,
        test_targets=targets,
        model=lambda: nn.Linear(WIDTH, WIDTH),
        loss=cross_entropy,
        quality=is_correct,
        preset={},
    )


def lifetimes(federation: Federation, name: str) -> list[float]:
    """Of the ClientApp's processes, until the run has ended."""
    begun: dict[int, float] = {}
    ended: dict[int, float] = {}
    stop = time.monotonic() + LIMIT
    while federation.processes["run"].poll() is None and time.monotonic() < stop:
        now = time.monotonic()
        alive = {pid for pid in federation.pids(name) if "flwr-clientapp" in words(pid)}
        for pid in alive - begun.keys():
            begun[pid] = now
        for pid in begun.keys() - ended.keys() - alive:
            ended[pid] = now
        time.sleep(0.02)
    found = [ended[pid] - begun[pid] for pid in begun if pid in ended]
    return [seconds for seconds in found if seconds > FORKED]


def measure(folder: Path, form: str, rounds: int) -> tuple[list[float], int]:
    """Seconds of messages, and how many failed."""
    state = f' state="{folder / "state"}"' if form == "folder" else ""
    settings = {
        "federation.out": str(folder / "run"), "federation.clients": 1,
        "train.epochs": float(rounds), "train.clients_per_round": 1,
        "task.name": "node_state:wide",
        "method.cols": 100_000, "method.k": 10_000, "local.epochs": 1, "local.batch_size": 0,
        "settings": "upload.quantiser=bits upload.bits=4",
    }  # fmt: skip
    here = {"PYTHONPATH": str(Path(__file__).parent)}
    with Federation(folder / "flower", here) as federation:
        federation.start_node("node0", f"partition-id=0{state}")
        federation.start_run(APP, settings)
        found = lifetimes(federation, "node0")
        told = federation.log("run")
    if len(found) < 3:
        raise SystemExit(told[-3000:])
    return found[2:], told.count("client 0 fails in round")  # after a greeting and a first round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    seconds: dict[str, list[float]] = {"context": [], "folder": []}
    failures = dict.fromkeys(seconds, 0)
    for _ in range(given.repeats):
        for form in seconds:
            with tempfile.TemporaryDirectory() as folder:
                found, failed = measure(Path(folder), form, given.rounds)
            seconds[form] += found
            failures[form] += failed
    rows = {
        form: {
            "seconds_per_message": statistics.median(found),
            "least": min(found),
            "most": max(found),
            "messages": len(found),
            "failures": failures[form],
        }
        for form, found in seconds.items()
    }
    for form, row in rows.items():
        print(f"{form:8} {row}")
    weights = WIDTH * WIDTH + WIDTH
    given.out.write_text(
        json.dumps({"about": environment("cpu"), "weights": weights, "state": rows}, indent=1)
        + "\n"
    )


if __name__ == "__main__":
    main()
