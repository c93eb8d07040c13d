"""What the hook itself costs on a GPU: a step with it beside a step without, one rank over NCCL.

    python benchmarks/ddp_own_time.py

With one rank nothing is sent, so what a step takes longer is sketching, rounding and reading. All
methods take turns, a few steps each, so that what else the machine does slows all of them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from ddp_rivals import wrap
from measure import environment
from torch.nn.functional import cross_entropy

from fetchsgd.tasks.shakespeare import CharacterModel

CHARACTERS, LENGTH = 74, 80
METHODS = (
    "plain sketch:16 sketch:64:cells=int4 sketch:64:cells=int4:decode=prior sketch:8:cells=float32 "
    "sketch:64:cells=int4:top_k=0.01 power:1 power:4 power:16"
)
WARM, STEPS = 4, 5


class Training:
    """One model, with steps that can be timed."""

    def __init__(self, method: str, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.device = options.device
        self.model = CharacterModel(CHARACTERS, options.width, options.layers).to(self.device)
        self.ddp = wrap(self.model, method, 0)
        fused = True if self.device == "cuda" else None
        self.optimizer = torch.optim.AdamW(self.ddp.parameters(), lr=1e-4, fused=fused)
        self.letters = torch.randint(CHARACTERS, (options.batch, LENGTH), device=self.device)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--methods", type=str.split, default=METHODS.split())
    parser.add_argument("--out", type=Path, help="a line for each method is added to it")
    options = parser.parse_args()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29455"}
    backend = "nccl" if options.device == "cuda" else "gloo"
    dist.init_process_group(backend, rank=0, world_size=1)
    trainings = {method: Training(method, options) for method in options.methods}
    for training in trainings.values():
        training.run(WARM)
    for _ in range(options.repeats):
        for training in trainings.values():
            training.seconds.append(training.run(STEPS))
    plain = median(trainings[options.methods[0]].seconds)
    weights = sum(p.numel() for p in trainings[options.methods[0]].model.parameters())
    print(f"{weights / 1e6:.1f}M weights, {options.batch} sequences of {LENGTH}")
    for method, training in trainings.items():
        taken = median(training.seconds)
        row = {"method": method, "weights": weights, "batch": options.batch, "seconds": taken}
        print(f"{method:36} {1e3 * taken:8.2f} ms {100 * (taken / plain - 1):6.1f} % more")
        assert all(bool(p.isfinite().all()) for p in training.model.parameters()), method
        if options.out:
            with options.out.open("a") as out:
                out.write(json.dumps(row | environment(options.device)) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
