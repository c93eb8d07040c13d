"""DistributedDataParallel over slow links: seconds a step, and whole runs, by real ranks.

    sudo FETCHSGD_DATA=... .venv/bin/python benchmarks/ddp/links.py --out ddp-links.json
    ... --device cuda --curves ddp-curves.jsonl --runs "power:4 lowrank:4:8"
    ... --task resnet9 --data FOLDER --batch 128 --bf16 --curves ddp-resnet9.jsonl
    ... --workers 2 --width 64 --layers 2 --methods "plain sketch:64" --steps 5      # a small try

Four processes over gloo (worker.py), each in a network namespace of its own behind a link of
limited speed (switch.py), train a transformer or ResNet9 (trained.py). Where the kernel gives no
namespaces, links are paced (paced.py): ranks and steps are real, and the link's time is added.

First each method in turn takes a few steps at every speed. Then `--runs` train over links of the
first speed until `--run-steps` or `--run-seconds` are over. Rates of learning are those with the
lowest last loss in `--curves`, which curves.py writes, and else `--lr`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from measure import environment
from reading import WIDTH, in_one_process, steps_to
from switch import LinksError, Switch, bits_a_second
from trained import add_options

METHODS = (
    "plain bf16 power:1 power:4 power:16 topk:0.01 topk:0.001 lowrank:4:8 lowrank:16:8 "
    "sketch:64:cells=int4 sketch:128:cells=int4 sketch:256:cells=int4:exact_below=0"
)
RUNS = "power:4 lowrank:4:8 lowrank:16:8 sketch:256:cells=int4:exact_below=0"
WARM = 6  # steps without a limit, in which kernels are compiled and hooks begin
FEW = 3  # steps that are timed of methods that send everything
PORT = 29400
Answer = dict[str, Any]


class Ranks:
    """All ranks, to be told what to do; they answer in turn."""

    def __init__(self, options: argparse.Namespace, switch: Switch | None) -> None:
        names = ("task", "data", "device", "threads", "workers", "width", "layers", "batch")
        settings = {name: getattr(options, name) for name in names}
        settings |= {"bf16": options.bf16, "run_steps": options.run_steps}
        settings["links"] = "namespaces" if switch else "paced"
        place = {
            "MASTER_ADDR": switch.address(0) if switch else "127.0.0.1",
            "MASTER_PORT": str(PORT),
        }
        if switch:
            place["GLOO_SOCKET_IFNAME"] = "eth0"
        worker = str(Path(__file__).with_name("worker.py"))
        self.workers = [
            subprocess.Popen(
                [*(switch.inside(rank) if switch else []), sys.executable, worker, str(rank),
                 json.dumps(settings)],
                env=os.environ | place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(options.workers)
        ]  # fmt: skip
        self.answers()

    def answers(self) -> list[Answer]:
        found = []
        for rank, worker in enumerate(self.workers):
            assert worker.stdout is not None
            line = worker.stdout.readline()
            if not line:
                raise SystemExit(f"rank {rank} has failed")
            found.append(json.loads(line))
        return found

    def tell(self, **order: object) -> list[Answer]:
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.write(json.dumps(order) + "\n")
            worker.stdin.flush()
        return [] if order["do"] == "end" else self.answers()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


class Bench:
    """Ranks behind links whose speed can be set."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self.options = options
        self.switch: Switch | None = None
        if options.links != "paced":
            try:
                self.switch = stack.enter_context(Switch(options.workers))
            except (LinksError, OSError, subprocess.CalledProcessError) as error:
                if options.links == "namespaces":
                    raise
                print(f"no namespaces here ({error}): links are paced", flush=True)
        self.ranks = stack.enter_context(Ranks(options, self.switch))

    @property
    def kind(self) -> str:
        return "namespaces" if self.switch else "paced"

    def steps(self, rate: str, count: int, seconds: float = 0.0) -> list[Answer]:
        if self.switch:
            self.switch.limit(rate)
        bits = bits_a_second(rate)
        return self.ranks.tell(do="steps", count=count, seconds=seconds, rate=bits)

    def timed(self, method: str, lr: float) -> list[Answer]:
        """A row for each speed."""
        about = self.ranks.tell(do="start", method=method, lr=lr)[0]
        self.steps("none", WARM)
        rows = []
        for rate in self.options.rates:
            sends_all = method in ("plain", "bf16")
            count = FEW if sends_all else self.options.steps
            found = self.steps(rate, count)
            ends = [0.0, *found[0]["ends"]]
            taken = [b - a for a, b in pairwise(ends)]
            row = about | {"method": method, "rate": rate, "steps": count, "lr": lr}
            row |= {"seconds": median(taken), "sent": fmean(r["sent"] for r in found) / count}
            rows.append(row)
            print(
                f"{method:44} {rate:>8} {1e3 * row['seconds']:9.1f} ms a step "
                f"{row['sent'] / 1e6:8.3f} MB", flush=True,
            )  # fmt: skip
        return rows

    def whole(self, method: str, lr: float) -> Answer:
        """One run over links of the first speed, after first steps as in `timed`."""
        options = self.options
        self.ranks.tell(do="start", method=method, lr=lr)
        self.steps("none", WARM)
        found = self.steps(options.rates[0], options.run_steps, options.run_seconds)
        losses = [fmean(each) for each in zip(*(r["losses"] for r in found), strict=True)]
        return {
            "method": method,
            "lr": lr,
            "rate": options.rates[0],
            "losses": [round(loss, 4) for loss in losses],
            "ends": [round(end, 3) for end in found[0]["ends"]],
            "sent": fmean(r["sent"] for r in found),
        }


def best_rates(file: Path | None) -> dict[str, float]:
    """For each method the rate of learning with the lowest last loss."""
    if file is None:
        return {}
    rows = [json.loads(line) for line in file.open()]
    found: dict[str, tuple[float, float]] = {}
    for row in rows:
        if row["loss"] is None:  # which has diverged
            continue
        tried = row["loss"], row["lr"]
        found[row["method"]] = min(found.get(row["method"], tried), tried)
    return {method: lr for method, (_, lr) in found.items()}


def show(runs: Sequence[Answer], targets: Sequence[float]) -> None:
    """Seconds and bytes until the mean of some losses was there."""
    print(f"{'to a loss of':44} " + "  ".join(f"{target:>24}" for target in targets))
    for run in runs:
        cells = []
        for target in targets:
            steps = steps_to(run["losses"], target)
            sent = run["sent"] / len(run["losses"]) / 1e6
            text = f"{steps} {run['ends'][steps - 1]:.1f} s {steps * sent:.1f} MB" if steps else "-"
            cells.append(f"{text:>24}")
        last = fmean(run["losses"][-WIDTH:])
        print(f"{run['method']:44} " + "  ".join(cells) + f"   last {last:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", type=str.split, default=METHODS.split())
    parser.add_argument("--runs", type=str.split, default=RUNS.split())
    parser.add_argument("--rates", type=str.split, default=["100mbit", "1gbit"])
    parser.add_argument("--links", choices=["auto", "namespaces", "paced"], default="auto")
    add_options(parser)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8, help="examples of a worker in a step")
    parser.add_argument("--bf16", action="store_true", help="forward and backward in bfloat16")
    parser.add_argument("--steps", type=int, default=12, help="that are timed")
    parser.add_argument("--run-steps", type=int, default=400)
    parser.add_argument("--run-seconds", type=float, default=40.0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--curves", type=Path, help="lines of curves.py")
    parser.add_argument("--targets", type=lambda text: [*map(float, text.split())],
                        default=[2.4, 2.3, 2.2, 2.1])  # fmt: skip
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lr = best_rates(options.curves)
    rows: list[Answer] = []
    runs: list[Answer] = []
    with ExitStack() as stack:
        bench = Bench(options, stack)
        for method in options.methods:
            rows += bench.timed(method, lr.get(in_one_process(method), options.lr))
            write(options, bench.kind, rows, runs)
        for method in options.runs:
            runs.append(bench.whole(method, lr.get(in_one_process(method), options.lr)))
            write(options, bench.kind, rows, runs)
            show(runs[-1:], options.targets)
        bench.ranks.tell(do="end")


def write(
    options: argparse.Namespace, kind: str, rows: Sequence[Answer], runs: Sequence[Answer]
) -> None:
    """After each method, so that what was measured is there if the rest does not come."""
    if options.out:
        about = environment(options.device) | {
            key: str(value) for key, value in vars(options).items() if key not in ("out", "data")
        }
        options.out.write_text(
            json.dumps({"links": kind, "steps": rows, "runs": runs, "about": about}) + "\n"
        )


if __name__ == "__main__":
    main()
