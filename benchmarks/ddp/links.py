"""DistributedDataParallel over slow links: loss against seconds and against bytes.

    sudo FETCHSGD_DATA=... .venv/bin/python benchmarks/ddp.py --out benchmarks/results/ddp.json
    ... --workers 2 --width 128 --layers 4 --rates 100mbit --steps 40       # a small try

Workers are processes over gloo, each in a network namespace of its own behind a link of limited
speed (ddp_network.py), and train one transformer on Shakespeare: by plain DDP, in bfloat16, by
PowerSGD, by local top-k and by our hook (ddp_rivals.py). A method's rate of learning is the best of
`--lr` by its last loss. Loss by step does not depend on the links, so rates of learning are chosen
with `--rates none`, and at each speed the best one runs for `--steps`, or for `--seconds` at most.

Seconds begin after the first three steps, in which buckets are rebuilt and kernels compiled. Bytes
are what a worker has sent, by the kernel's counter of its link: everything, with headers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
import torch.distributed as dist
from switch import Switch
from rivals import wrap
from measure import environment
from torch.nn.functional import cross_entropy

from fetchsgd.tasks.shakespeare import CharacterModel, shakespeare

METHODS = (
    "plain bf16 power:1 power:4 power:16 topk:0.01 topk:0.001 "
    "sketch:16 sketch:64:cells=int4 sketch:256:cells=int4"
)
SKIP = 3  # steps that are not timed
WARM_UP = 20  # steps over which the rate of learning rises
TAIL = 0.1  # of the steps, over which the last loss is a mean
PORT = 29400
Log = list[dict[str, float]]


def work(rank: int, options: argparse.Namespace, out: Path) -> None:
    """One worker, from its start to its log."""
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo", rank=rank, world_size=options.workers)
    task = shakespeare(sequences_per_client=0)
    torch.manual_seed(options.seed)
    characters = int(task.train.targets.max()) + 1
    model = CharacterModel(characters, options.width, options.layers).to(options.device)
    ddp = wrap(model, options.methods[0], options.seed)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=options.lr[0])
    inputs, targets = task.train.inputs, task.train.targets
    dice = torch.Generator().manual_seed(1000 * options.seed + rank)
    log: Log = []
    dist.barrier()
    start = time.perf_counter()
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = options.lr[0] * min(1.0, (step + 1) / WARM_UP)
        chosen = torch.randint(len(targets), (options.batch,), generator=dice)
        x, y = inputs[chosen].to(options.device), targets[chosen].to(options.device)
        optimizer.zero_grad()
        loss = cross_entropy(ddp(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        seconds = time.perf_counter() - start
        log.append({"loss": float(loss.detach()), "seconds": seconds, "sent": sent_so_far()})
        # All ranks stop at the same step.
        late = torch.tensor(float(seconds > options.seconds))
        if options.seconds < float("inf") and step % 5 == 4:
            dist.all_reduce(late)
            if late > 0:
                break
    about = {"weights": sum(p.numel() for p in model.parameters()), "log": log}
    out.write_text(json.dumps(about))
    dist.barrier()
    dist.destroy_process_group()


def sent_so_far() -> float:
    counter = Path("/sys/class/net/eth0/statistics/tx_bytes")
    return float(counter.read_text()) if "GLOO_SOCKET_IFNAME" in os.environ else 0.0


def train(options: argparse.Namespace, method: str, lr: float, rate: str) -> dict[str, Any]:
    """All workers of one run; the mean of what they have measured."""
    with (
        tempfile.TemporaryDirectory(prefix="fetchsgd-ddp-") as folder,
        Switch(options.workers, rate) if rate != "none" else nullcontext() as switch,
    ):
        files = [Path(folder) / f"{rank}.json" for rank in range(options.workers)]
        workers = []
        for rank, file in enumerate(files):
            words = [*sys.argv, "--methods", method, "--lr", str(lr), "--worker", str(rank)]
            inside = switch.inside(rank) if switch else []
            there = {"GLOO_SOCKET_IFNAME": "eth0"} if switch else {}
            master = switch.address(0) if switch else "127.0.0.1"
            place = {"MASTER_ADDR": master, "MASTER_PORT": str(PORT)} | there
            command = [*inside, sys.executable, *words, "--out", str(file)]
            workers.append(subprocess.Popen(command, env=os.environ | place))
        try:
            for worker in workers:
                if worker.wait():
                    raise SystemExit(f"a worker of {method} has failed")
        finally:
            for worker in workers:
                worker.kill()
        return summary([json.loads(file.read_text()) for file in files]) | {
            "method": method, "lr": lr, "rate": rate
        }  # fmt: skip


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    logs: list[Log] = [each["log"] for each in found]
    losses = [fmean(line["loss"] for line in lines) for lines in zip(*logs, strict=True)]
    times = [line["seconds"] for line in logs[0]][SKIP:]
    sent = [fmean(line["sent"] for line in lines) for lines in zip(*logs, strict=True)]
    tail = max(int(TAIL * len(losses)), 1)
    return {
        "weights": found[0]["weights"],
        "steps": len(losses),
        "loss": fmean(losses[-tail:]),
        "step_seconds": median(b - a for a, b in pairwise(times)),
        "step_bytes": (sent[-1] - sent[SKIP]) / max(len(sent) - 1 - SKIP, 1),
        "losses": [round(loss, 4) for loss in losses],
    }


def steps_to(losses: Sequence[float], target: float, width: int = 20) -> int | None:
    """The first step at which the mean of the last `width` losses is at the target."""
    for end in range(width, len(losses) + 1):
        if fmean(losses[end - width : end]) <= target:
            return end
    return None


def show(curves: dict[str, dict[str, Any]], rows: Sequence[dict[str, Any]], target: float) -> None:
    print(f"\nto a loss of {target:.3f}, the last of plain DDP")
    head = f"{'method':20} {'link':>8} {'lr':>8} {'loss':>8} {'s/step':>8} {'MB/step':>9}"
    print(f"{head} {'steps':>6} {'seconds':>8} {'MB':>8}")
    for row in rows:
        steps = steps_to(curves.get(row["method"], row)["losses"], target)
        rest = (
            f"{steps:6d} {steps * row['step_seconds']:8.0f} {steps * row['step_bytes'] / 1e6:8.1f}"
            if steps
            else "     -        -        -"
        )
        print(
            f"{row['method']:20} {row['rate']:>8} {row['lr']:8g} {row['loss']:8.3f} "
            f"{row['step_seconds']:8.3f} {row['step_bytes'] / 1e6:9.3f} {rest}"
        )


def measure(options: argparse.Namespace) -> None:
    curves: dict[str, dict[str, Any]] = {}
    if options.curves:
        curves = json.loads(options.curves.read_text())["curves"]
    rows, tried = [], []
    for method in options.methods:
        if "none" in options.rates or (len(options.lr) > 1 and method not in curves):
            runs = [train(options, method, each, "none") for each in options.lr]
            tried += [{key: run[key] for key in ("method", "lr", "loss")} for run in runs]
            curves[method] = min(runs, key=lambda run: run["loss"])
            print(f"{method}: {[(run['lr'], round(run['loss'], 3)) for run in runs]}", flush=True)
        lr = curves[method]["lr"] if method in curves else options.lr[0]
        for rate in options.rates:
            row = train(options, method, lr, rate) if rate != "none" else curves[method]
            rows.append(row)
            print(f"{method} {rate}: {row['step_seconds']:.3f} s/step", flush=True)
    target = options.target or (curves.get("plain") or rows[0])["loss"]
    show(curves, rows, target)
    if options.out:
        settings = {key: str(value) for key, value in vars(options).items()}
        found = {"about": environment(options.device), "settings": settings, "tried": tried}
        options.out.write_text(json.dumps(found | {"curves": curves, "rows": rows}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", type=str.split, default=METHODS.split())
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rates", type=str.split, default=["100mbit", "1gbit"])
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8, help="sequences of a worker in a step")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--lr", type=lambda text: [*map(float, text.split())], default=[1e-3])
    parser.add_argument("--target", type=float, help="a loss; without it, the last of plain DDP")
    parser.add_argument("--curves", type=Path, help="an earlier --out, with losses by step")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is None:
        measure(options)
    else:
        work(options.worker, options, options.out)


if __name__ == "__main__":
    main()
