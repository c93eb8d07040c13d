"""Rounds per second of several processes that share the clients, against one alone.

    python benchmarks/ranks.py --clients 200 --parts --out benchmarks/results/ranks-cpu.json
    python benchmarks/ranks.py --clients 50 100 200 400 599 --parts \
        --set train.sampling=uniform --ways "fetchsgd, floats" uncompressed \
        --out benchmarks/results/ranks-sizes-cpu.json
    python benchmarks/ranks.py --task shakespeare --clients 10 --ways "fetchsgd, floats"
    python benchmarks/ranks.py --device cuda --processes 4

Every process has one thread, or a GPU of its own. One process alone and all together take their
rounds in turn, of the same runs; while one works alone the others sleep. The ratio is of the time:
with two processes 0.5 would be all that can be had, and 0.625 is 1.6 times the rounds per second.

`--parts` adds where the milliseconds of a round go, in one process and in the first of several:
rank_parts.py says what is what.

`of_processor_time` is the same ratio of the time that a core has worked, in the process that worked
longest. On cores that others use as well it says what two free cores would do, but for waiting.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import environment, report
from rank_parts import Parts

from fetchsgd.ranks import ALONE, Ranks, joined
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run

TARGET = 0.625  # of two processes
# Digits, whose clients have few examples each, so that little is computed for what is summed up.
WAYS = {
    "fetchsgd, floats": ("method.name=fetchsgd",),
    "fetchsgd, 2 bits": ("method.name=fetchsgd", "upload.quantiser=bits", "upload.bits=2"),
    "fetchsgd, sums modulo 2^8": ("method.name=fetchsgd", "upload.sum=modular"),
    "local top-k": ("method.name=local_topk",),
    "fedavg, 2 epochs of 5": ("method.name=fedavg", "local.epochs=2", "local.batch_size=5"),
    "uncompressed": ("method.name=uncompressed",),
}


def main() -> None:
    options = _options()
    if "RANK" in os.environ:
        _work(options)
        return
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(options.processes),
        "LOCAL_WORLD_SIZE": str(options.processes),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    started = []
    for rank in range(options.processes):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        started.append(subprocess.Popen([sys.executable, *sys.argv], env=os.environ | shared | own))
    sys.exit(max(process.wait() for process in started))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--clients", type=int, nargs="+", default=[0], help="a round; 0 is the task's own"
    )
    parser.add_argument("--set", action="append", default=[], help="a setting, as train takes it")
    parser.add_argument("--parts", action="store_true", help="also say where the time goes")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--rounds", type=int, default=5, help="in one timing")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def _work(options: argparse.Namespace) -> None:
    rows = []
    parts = Parts() if options.parts else None
    with joined() as ranks:
        for clients in options.clients:
            for name in options.ways:
                rows += _measured(name, clients, ranks, options, parts)
        if ranks.is_first:
            about = {"processes": ranks.size, "task": options.task, "clients": options.clients}
            about |= {"set": options.set} if options.set else {}
            about |= environment(options.device)
            report(rows, about, options.out)


def _measured(
    name: str, clients: int, ranks: Ranks, options: argparse.Namespace, parts: Parts | None
) -> list[dict[str, Any]]:
    sets = [*WAYS[name], f"train.device={options.device}", *options.set]
    if clients:
        sets.append(f"train.clients_per_round={clients}")
    config = resolve({"task": {"name": options.task}}, sets)
    both = Run(config, ranks=ranks)
    one = Run(config, ranks=ALONE) if ranks.is_first else None
    if parts is not None:
        parts.watch(both.method)
    rounds = options.rounds
    times: dict[str, list[tuple[float, float]]] = {"one": [], "both": []}
    spent: dict[str, list[dict[str, float]]] = {"one": [], "both": []}
    for repeat in range(options.repeats + 1):
        ranks.wait_for_all()
        if one is not None:
            times["one"].append(_seconds(partial(_rounds, one, rounds), options.device))
            spent["one"].append(parts.taken() if parts else {})
        ranks.wait_for_all()
        wall, worked = _seconds(partial(_rounds, both, rounds), options.device)
        spent["both"].append(parts.taken() if parts else {})
        longest = ranks.most(torch.tensor([worked], dtype=torch.float64, device=both.device))
        times["both"].append((wall, longest.item()))
        if repeat == 0:  # in which code is compiled, and memory is had for the first time
            times, spent = {"one": [], "both": []}, {"one": [], "both": []}
    if one is None:
        return []
    (alone, alone_worked), (together, together_worked) = (
        [statistics.median(kind) / rounds for kind in zip(*times[who], strict=True)]
        for who in ("one", "both")
    )
    limit = TARGET if ranks.size == 2 else None
    named = f"{name}, {clients} clients" if len(options.clients) > 1 else name
    rows: list[dict[str, Any]] = [
        {"what": f"{named}: one process", "measured": f"{1 / alone:.1f} /s"},
        {
            "what": f"{named}: {ranks.size} processes",
            "measured": f"{1 / together:.1f} /s",
            "ratio": together / alone,
            "times_the_rounds": round(alone / together, 3),
            "of_processor_time": round(together_worked / alone_worked, 3),
            "target": limit,
        },
    ]
    if parts is not None:
        for row, who, seconds in zip(rows, spent, (alone, together), strict=True):
            row["milliseconds"] = parts.medians(spent[who], rounds, seconds)
            print(row["what"], row["milliseconds"], flush=True)
    return rows


def _rounds(run: Run, rounds: int) -> None:
    for _training, merged in run.train(run.start(), rounds):
        merged.loss.item()


def _seconds(function: Callable[[], None], device: str) -> tuple[float, float]:
    """That have passed, and in which this process has worked."""
    start, idle = time.perf_counter(), time.process_time()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, time.process_time() - idle


if __name__ == "__main__":
    main()
