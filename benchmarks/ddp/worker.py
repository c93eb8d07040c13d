"""One rank of links.py: does what it is told, line by line.

    start   a model, its DDP with a method's hook, and an optimiser
    steps   so many steps of training, or as many as fit into some seconds
    end

Each line that comes is a JSON object, and so is each line that goes back.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from paced import pace
from rivals import wrap
from torch.nn.functional import cross_entropy
from trained import augmented, load, model_of, optimizer_of, rate

COUNTER = Path("/sys/class/net/eth0/statistics/tx_bytes")


class Worker:
    def __init__(self, rank: int, settings: dict[str, Any]) -> None:
        self.rank, self.settings = rank, settings
        self.device = settings["device"]
        torch.set_float32_matmul_precision("high")
        torch.set_num_threads(settings["threads"])
        dist.init_process_group("gloo", rank=rank, world_size=settings["workers"])
        # Also where links are real: gloo's futures do not wait until sums are back on the GPU.
        is_paced = settings["links"] == "paced"
        self.link = pace() if is_paced or self.device == "cuda" else None
        self.counts_itself = is_paced
        self.name, self.run_steps = settings["task"], settings["run_steps"]
        self.task = load(self.name, settings["data"])
        self.inputs = self.task.train.inputs.to(self.device)
        self.targets = self.task.train.targets.to(self.device)

    def start(self, method: str, lr: float) -> dict[str, Any]:
        torch.manual_seed(0)
        shape = self.settings["width"], self.settings["layers"]
        self.model = model_of(self.name, self.task, *shape, self.device)
        self.ddp = wrap(self.model, method, 0, hooked=self.counts_itself)
        self.optimizer = optimizer_of(self.name, method, self.ddp.parameters(), lr, self.device)
        self.lr, self.step = lr, 0
        self.dice = torch.Generator(self.device).manual_seed(1000 + self.rank)
        return {"weights": sum(p.numel() for p in self.model.parameters())}

    def one_step(self) -> torch.Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.name, self.lr, min(self.step, self.run_steps), self.run_steps)
        size = (self.settings["batch"],)
        chosen = torch.randint(len(self.targets), size, generator=self.dice, device=self.device)
        self.optimizer.zero_grad()
        inputs = augmented(self.name, self.inputs[chosen], self.dice)
        with torch.autocast(self.device, torch.bfloat16, self.settings["bf16"]):
            outputs = self.ddp(inputs).float()
        loss = cross_entropy(outputs.flatten(0, -2), self.targets[chosen].flatten())
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.detach()

    def steps(self, count: int, seconds: float, rate: float) -> dict[str, Any]:
        """rate: bits a second of a paced link, 0 for any."""
        if self.counts_itself and self.link:
            self.link.rate = rate
        dist.barrier()
        losses, ends = [], [0.0]
        sent, start = self.sent(), time.perf_counter()
        for _ in range(count):
            losses.append(float(self.one_step()))
            ends.append(time.perf_counter() - start)
            # All ranks stop at the same step: how late the first one is decides.
            if seconds and len(losses) % 10 == 0:
                late = torch.tensor(float(ends[-1] > seconds))
                dist.broadcast(late, 0)
                if late > 0:
                    break
        dist.barrier()  # until everybody's bytes are sent
        return {"losses": losses, "ends": ends[1:], "sent": self.sent() - sent}

    def sent(self) -> float:
        """So far: by the kernel's counter, headers and all, or by that of a paced link."""
        if self.counts_itself and self.link:
            return self.link.sent
        return float(COUNTER.read_text())


def main() -> None:
    rank, settings = int(sys.argv[1]), json.loads(sys.argv[2])
    worker = Worker(rank, settings)
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        name = order.pop("do")
        if name == "end":
            break
        print(json.dumps(getattr(worker, name)(**order)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
