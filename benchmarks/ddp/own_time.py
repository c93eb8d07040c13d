"""What the hook itself costs on a GPU: a step with it beside a step without, one rank over NCCL.

    python benchmarks/ddp/own_time.py --out benchmarks/results/ddp-own-time-h200.jsonl
    ... --sizes 384x6x32 --profile      # and where its time goes

With one rank nothing is sent, so what a step takes longer is sketching, rounding and reading. All
methods take turns, a few steps each, in another order every time, so that what else the machine
does slows all of them alike. `plain:again` is plain DDP once more: what single measurements differ
by. `nothing` is a hook that hands gradients back, what any hook in Python costs at least.
`group_mb=0` is ours with a table for each bucket, `group_mb=1000` with one for all. A size is width
x layers x sequences of 256 characters; the model computes in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from measure import environment
from rivals import wrap
from torch import nn
from torch.nn.functional import cross_entropy

from fetchsgd.tasks.shakespeare import CharacterModel

CHARACTERS, LENGTH = 74, 256
METHODS = (
    "plain plain:again nothing bf16 sketch:64:cells=int4 sketch:64:cells=int4:group_mb=0 "
    "sketch:64:cells=int4:group_mb=128 sketch:64:cells=int4:group_mb=256 "
    "sketch:64:cells=int4:group_mb=1000 sketch:64:cells=int4:bucket_mb=1000 sketch:16 "
    "sketch:64:cells=int4:feedback=0.9 power:4 lowrank:4:8:bucket_mb=1000"
)
SIZES = "384x6x32 1024x10x32"  # 10.8 and 126 million weights
WARM, STEPS = 6, 8


class Training:
    """One model, with steps that can be timed."""

    def __init__(self, method: str, size: str, device: str) -> None:
        torch.manual_seed(0)
        width, layers, sequences = map(int, size.split("x"))
        self.device = device
        model = CharacterModel(CHARACTERS, width, layers)
        model.places = nn.Embedding(LENGTH, width)
        self.model = model.to(device)
        self.ddp = wrap(self.model, method, 0)
        fused = True if device == "cuda" else None
        self.optimizer = torch.optim.AdamW(self.ddp.parameters(), lr=1e-4, fused=fused)
        self.letters = torch.randint(CHARACTERS, (sequences, LENGTH), device=device)
        self.seconds: list[float] = []

    def step(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16):
            outputs = self.ddp(self.letters)
            loss = cross_entropy(outputs.flatten(0, 1), self.letters.flatten().long())
        loss.backward()
        self.optimizer.step()

    def run(self, steps: int) -> float:
        finish = torch.cuda.synchronize if self.device == "cuda" else lambda: None
        finish()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        finish()
        return (time.perf_counter() - start) / steps


def profile(training: Training) -> None:
    """The programs that take longest on the GPU, and the calls that take longest to start them."""
    from torch.profiler import ProfilerActivity

    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as found:
        training.run(5)
    for order in ("self_cuda_time_total", "self_cpu_time_total"):
        print(found.key_averages().table(sort_by=order, row_limit=25, max_name_column_width=60))


def measure(size: str, options: argparse.Namespace) -> None:
    trainings = {method: Training(method, size, options.device) for method in options.methods}
    for training in trainings.values():
        training.run(WARM)
    for turn in range(options.repeats):
        # What a method leaves behind, such as a thread, should not meet the same one every time.
        for method in random.Random(turn).sample(options.methods, len(options.methods)):
            trainings[method].seconds.append(trainings[method].run(STEPS))
    first = next(iter(trainings.values()))
    plain = median(first.seconds)
    weights = sum(p.numel() for p in first.model.parameters())
    print(f"{size}: {weights / 1e6:.1f}M weights, steps of {1e3 * plain:.2f} ms")
    for method, training in trainings.items():
        taken = median(training.seconds)
        # As a ratio within each turn, since the machine may be slower in some.
        ratio = median(a / b for a, b in zip(training.seconds, first.seconds, strict=True))
        print(f"{method:56} {1e3 * taken:8.2f} ms {100 * (ratio - 1):6.1f} % more", flush=True)
        assert all(bool(p.isfinite().all()) for p in training.model.parameters()), method
        row = {"method": method, "size": size, "weights": weights, "seconds": taken, "ratio": ratio}
        if options.out:
            with options.out.open("a") as out:
                out.write(json.dumps(row | {"about": environment(options.device)}) + "\n")
        if options.profile:
            profile(training)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", type=str.split, default=SIZES.split())
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--methods", type=str.split, default=METHODS.split())
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path, help="a line for each method is added to it")
    options = parser.parse_args()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29455"}
    backend = "nccl" if options.device == "cuda" else "gloo"
    dist.init_process_group(backend, rank=0, world_size=1)
    for size in options.sizes:
        measure(size, options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
