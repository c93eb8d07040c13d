"""What the hook itself costs on a GPU: a step with it beside a step without, one rank over NCCL.

    python benchmarks/ddp_own_time.py

With one rank nothing is sent, so what a step takes longer is sketching, rounding and reading.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from ddp_rivals import wrap
from torch.nn.functional import cross_entropy

from fetchsgd.tasks.shakespeare import CharacterModel

CHARACTERS, LENGTH = 74, 80
METHODS = (
    "plain sketch:32 sketch:64:cells=int4 sketch:64:cells=int4:decode=prior sketch:8:cells=float32 "
    "sketch:32:top_k=0.01 power:1 power:4"
)


def step_seconds(method: str, options: argparse.Namespace, steps: int) -> tuple[float, int]:
    torch.manual_seed(0)
    model = CharacterModel(CHARACTERS, options.width, options.layers).to(options.device)
    ddp = wrap(model, method, 0)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4, fused=options.device == "cuda")
    letters = torch.randint(CHARACTERS, (options.batch, LENGTH), device=options.device)
    kind = torch.bfloat16

    def once() -> None:
        optimizer.zero_grad()
        with torch.autocast(options.device, kind):
            loss = cross_entropy(ddp(letters).flatten(0, 1), letters.flatten().long())
        loss.backward()
        optimizer.step()

    for _ in range(5):
        once()
    finish = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    finish()
    start = time.perf_counter()
    for _ in range(steps):
        once()
    finish()
    taken = (time.perf_counter() - start) / steps
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    assert finite, method
    return taken, sum(p.numel() for p in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--methods", type=str.split, default=METHODS.split())
    options = parser.parse_args()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29455"}
    backend = "nccl" if options.device == "cuda" else "gloo"
    dist.init_process_group(backend, rank=0, world_size=1)
    plain = None
    for method in options.methods:
        taken, weights = step_seconds(method, options, options.steps)
        plain = plain or taken
        print(
            f"{method:22} {weights / 1e6:6.1f}M weights {1e3 * taken:8.2f} ms a step "
            f"{100 * (taken / plain - 1):6.1f} % more than {options.methods[0]}",
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
