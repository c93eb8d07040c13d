"""How long a step takes over slow links, without the model's own part of it.

    sudo .venv/bin/python benchmarks/ddp/steps.py --out benchmarks/results/ddp-steps.jsonl

Four processes over gloo, each in a network namespace behind a link of limited speed, exchange the
gradients of a transformer of 10.7 million weights by real hooks. The gradients are random numbers
that are there already, in buckets as they would be else, so what is left of a step is the hook and
the links. Methods take turns, a few steps each, so that what else the machine does slows all alike.
Shown are the median and the least seconds of a step, and how long a process had a core in it, which
is the hook's own time on these cores, whatever else runs there.

Bytes are what a worker has sent, by the kernel's counter of its link: everything, with headers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import torch.distributed as dist
from curves import METHODS
from measure import environment
from rivals import START, wrap
from switch import Switch
from torch import Tensor, nn

from fetchsgd.tasks.shakespeare import CharacterModel

CHARACTERS = 74
PORT = 29400
COUNTER = Path("/sys/class/net/eth0/statistics/tx_bytes")
WARM = START + 1  # buckets are rebuilt after the first step, and PowerSGD starts later


class Replay(nn.Module):
    """A model's parameters with gradients that are there already."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.found = [torch.randn_like(p) for p in model.parameters()]

    def forward(self) -> Tensor:
        pairs = zip(self.model.parameters(), self.found, strict=True)
        return torch.stack([torch.vdot(p.flatten(), g.flatten()) for p, g in pairs]).sum()


def now() -> np.ndarray:
    """Seconds, seconds of a core that this process had, and bytes sent."""
    return np.array([time.perf_counter(), time.process_time(), float(COUNTER.read_text())])


def work(rank: int, options: argparse.Namespace, file: Path) -> None:
    """One worker: all methods in turn."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=options.workers)
    torch.manual_seed(0)
    model = Replay(CharacterModel(CHARACTERS, options.width, options.layers))
    found: dict[str, list[tuple[float, float, float]]] = {method: [] for method in options.methods}
    for _ in range(options.repeats):
        for method in options.methods:
            ddp = wrap(model, method, 0)
            for step in range(WARM + options.steps):
                model.zero_grad()
                dist.barrier()
                before = now()
                ddp().backward()
                seconds, own, _ = now() - before
                dist.barrier()  # until everybody's bytes are sent
                if step >= WARM:
                    found[method].append((seconds, own, (now() - before)[2]))
            del ddp
    rows = []
    for method, steps in found.items():
        seconds, own, sent = ([*each] for each in zip(*steps, strict=True))
        times = {"seconds": median(seconds), "least": min(seconds), "own": median(own)}
        rows.append({"method": method, **times, "sent": median(sent)})
    file.write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def measure(options: argparse.Namespace, rate: str) -> list[dict[str, Any]]:
    with (
        tempfile.TemporaryDirectory(prefix="fetchsgd-ddp-") as folder,
        Switch(options.workers) as switch,
    ):
        switch.limit(rate)
        place = {
            "MASTER_ADDR": switch.address(0),
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        files = [Path(folder) / f"{rank}.json" for rank in range(options.workers)]
        workers = [
            subprocess.Popen(
                [*switch.inside(rank), sys.executable, *sys.argv, f"--worker={rank}:{file}"],
                env=os.environ | place,
            )
            for rank, file in enumerate(files)
        ]
        try:
            if any(worker.wait() for worker in workers):
                raise SystemExit("a worker has failed")
        finally:
            for worker in workers:
                worker.kill()
        found = [json.loads(file.read_text()) for file in files]
    return [
        {
            "method": rows[0]["method"],
            "rate": rate,
            **{key: max(row[key] for row in rows) for key in ("seconds", "least", "own")},
            "sent": median(row["sent"] for row in rows),
        }
        for rows in zip(*found, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", type=str.split, default=METHODS.split())
    parser.add_argument("--rates", type=str.split, default=["100mbit", "1gbit"])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a line for each method and rate is added to it")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        rank, file = options.worker.split(":")
        work(int(rank), options, Path(file))
        return
    for rate in options.rates:
        for row in measure(options, rate):
            print(
                f"{row['method']:40} {rate:>8} {row['sent'] / 1e6:9.3f} MB  "
                f"median {1e3 * row['seconds']:7.1f} ms  least {1e3 * row['least']:7.1f} ms  "
                f"own {1e3 * row['own']:7.1f} ms",
                flush=True,
            )
            if options.out:
                with options.out.open("a") as out:
                    out.write(json.dumps(row | {"about": environment("cpu")}) + "\n")


if __name__ == "__main__":
    main()
