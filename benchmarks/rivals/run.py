"""Rounds a second of our simulator, Flower's and Apple's pfl: the same work, the same machine.

    make bench-rivals     (or: .venv-rivals/bin/python benchmarks/rivals/run.py --out FILE.json)

What makes it fair:
- The same network from the same weights, the same digits, the same 20 clients in each round, and
  for FedAvg the same work a client: one step of plain SGD on all of its 5 examples, then the plain
  mean. That everyone's model ends with the same loss is checked.
- Two cores and no GPU for everyone, no evaluation, and threads that do not spin while they wait.
- Start-up is left out: a result is the median time from the end of a round to the end of the next,
  after five rounds that are not timed.
- Rivals have the settings that we found fastest. Flower: two actors of one core each, data and
  model kept by the actors, replies looked for every millisecond. pfl: in one process with one
  thread and with two, and in two processes of one thread; the target is for the fastest of these.
- All are run one after another, then all again; a row is the median over these repeats.

FetchSGD is shown beside FedAvg as the method of this library. Its clients send one gradient, which
takes a client the same work as one step; its loss is another, for its server has momentum.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from measure import environment, report

HERE = Path(__file__).parent
TWO_PROCESSES = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
COMMANDS: dict[str, tuple[str, ...]] = {
    "ours, fedavg": ("ours.py", "fedavg"),
    "ours, fetchsgd": ("ours.py", "fetchsgd"),
    "pfl, fedavg, 1 thread": ("apple_pfl.py", "1"),
    "pfl, fedavg, 2 threads": ("apple_pfl.py", "2"),
    "pfl, fedavg, 2 processes": (*TWO_PROCESSES, "apple_pfl.py", "1"),
    "flower, fedavg": ("flower.py",),
}
TARGETS = {"flower": 0.1, "pfl": 0.5}
SAME_LOSS = 1e-2


def run(command: tuple[str, ...]) -> dict[str, Any]:
    """The JSON that a script prints; its own warnings are shown only if it fails."""
    with tempfile.TemporaryDirectory() as home:
        quiet = {"OMP_WAIT_POLICY": "passive", "FLWR_HOME": home}
        done = subprocess.run(
            [sys.executable, *command], cwd=HERE, env=os.environ | quiet, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def measure(repeats: int) -> dict[str, list[dict[str, Any]]]:
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in COMMANDS}
    for repeat in range(repeats):
        for name, command in COMMANDS.items():
            result = run(command)
            results[name].append(result)
            speed, loss = result["rounds_per_second"], result["train_loss"]
            print(f"{repeat + 1}/{repeats} {name}: {speed:.1f} rounds/s, loss {loss:.5f}")
    return results


def check_same_work(results: dict[str, list[dict[str, Any]]]) -> None:
    losses = [r["train_loss"] for name, all in results.items() if "fedavg" in name for r in all]
    spread = max(losses) - min(losses)
    assert spread < SAME_LOSS, f"they did not do the same work: losses differ by {spread:.3g}"


def table(results: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The speed of each over that of our FedAvg; of pfl's three ways the fastest has the target."""
    speeds = {
        name: statistics.median(r["rounds_per_second"] for r in all)
        for name, all in results.items()
    }
    rows = []
    for name, speed in speeds.items():
        family = name.split(",")[0]
        fastest = max(s for other, s in speeds.items() if other.startswith(family))
        rows.append(
            {
                "what": f"{name}: rounds/s / ours, fedavg",
                "measured": f"{speed:.1f}/s",
                "ratio": speed / speeds["ours, fedavg"],
                "target": TARGETS.get(family) if speed == fastest else None,
                "rounds_per_second": [r["rounds_per_second"] for r in results[name]],
                "train_loss": [r["train_loss"] for r in results[name]],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    results = measure(options.repeats)
    check_same_work(results)
    about = environment("cpu") | {"load before": load}
    for all in results.values():
        about |= all[0]["versions"]
    report(table(results), about, options.out)


if __name__ == "__main__":
    main()
