"""Loss by step for every way to exchange gradients, in one process that stands for four workers.

    FETCHSGD_DATA=... python benchmarks/ddp/curves.py --device cuda --out curves.jsonl
    python benchmarks/ddp/curves.py --task resnet9 --data FOLDER --device cuda --bf16 \\
        --out benchmarks/results/ddp-resnet9-h200.jsonl
    ... --part 1/4                  # a quarter of the runs, to have several side by side
    python benchmarks/ddp/curves.py --read curves*.jsonl

What compression does to training has nothing to do with links, so it is measured apart from them,
where steps are fast: emulated.py does to all workers' gradients what the hooks would do. How
long a step takes is measured by links.py, with real workers and links.

trained.py says what is trained. Every method has the same choice of rates. Written: a line of JSON
for each run, whose losses end where one is not finite.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from emulated import Way, way
from measure import environment
from reading import WIDTH, steps_to
from torch import Tensor
from torch.nn.functional import cross_entropy
from trained import add_options, augmented, load, model_of, optimizer_of, rate

from fetchsgd.tasks.base import HeldOut, Task

METHODS = (
    "sketch:64:cells=int4 sketch:128:cells=int4 sketch:256:cells=int4:exact_below=0 "
    "sketch:1024:cells=int4:exact_below=0 sketch:16 topk:0.001 topk:0.01 bf16 "
    "plain power:1 power:4 power:16 lowrank:4:8 lowrank:8:8 lowrank:16:8"
)
ON_IMAGES = (
    "plain bf16 power:1 power:4 power:16 topk:0.01 topk:0.001 sketch:64:cells=int4 "
    "sketch:256:cells=int4:exact_below=0 lowrank:4:8 lowrank:16:8"
)
# Where nothing else is said.
USUAL: dict[str, dict[str, Any]] = {
    "shakespeare": {"methods": METHODS.split(), "batch": 8, "steps": 1000, "lr": [1e-3]},
    "resnet9": {
        "methods": ON_IMAGES.split(),
        "batch": 128,
        "steps": 600,
        "lr": [0.05, 0.1, 0.025],
    },
}
TEST_SEQUENCES = 2000
OFTEN = 50  # steps after which a run that has diverged is left


class Workers:
    """One model, and the gradients that each of so many workers would have in a step.

    Where their mean is all that is asked for, one of them does the work of all.
    """

    def __init__(self, options: argparse.Namespace, task: Task, count: int) -> None:
        self.options, self.count = options, count
        self.inputs = task.train.inputs.to(options.device)
        self.targets = task.train.targets.to(options.device)
        torch.manual_seed(options.seed)
        shape = options.width, options.layers
        self.model = model_of(options.task, task, *shape, options.device)
        self.parameters = list(self.model.parameters())
        self.start = [p.detach().clone() for p in self.parameters]
        shape = count, options.workers * options.batch // count
        self.x = self.inputs[: shape[0] * shape[1]].unflatten(0, shape).clone()
        self.y = self.targets[: shape[0] * shape[1]].unflatten(0, shape).clone()
        self.gradients = [
            torch.zeros(count, p.numel(), device=options.device) for p in self.parameters
        ]
        self.loss = torch.zeros(count, device=options.device)
        self.compute: Callable[[], None] = self._compute
        if options.device == "cuda":
            self.compute = self._captured()

    def _compute(self) -> None:
        for worker in range(self.count):
            with torch.autocast(self.options.device, torch.bfloat16, self.options.bf16):
                outputs = self.model(self.x[worker]).float()
            loss = cross_entropy(outputs.flatten(0, -2), self.y[worker].flatten())
            found = torch.autograd.grad(loss, self.parameters)
            for target, gradient in zip(self.gradients, found, strict=True):
                target[worker].copy_(gradient.flatten())
            self.loss[worker].copy_(loss.detach())

    def _captured(self) -> Callable[[], None]:
        """The same as a CUDA graph: the model is small, and launching is most of its time."""
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                self._compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute()
        return graph.replay

    def restart(self) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.start, strict=True):
                parameter.copy_(value)

    def draw(self, dice: torch.Generator) -> None:
        shape = self.options.workers * self.options.batch
        chosen = torch.randint(len(self.targets), (shape,), generator=dice, device=dice.device)
        x = self.inputs[chosen]
        x = augmented(self.options.task, x, dice)
        self.x.copy_(x.view_as(self.x))
        self.y.copy_(self.targets[chosen].view_as(self.y))


def train(
    workers: Workers, options: argparse.Namespace, method: str, exchange: Way, peak: float
) -> list[float]:
    """Loss by step, as long as it is finite."""
    workers.restart()
    optimizer = optimizer_of(options.task, method, workers.parameters, peak, options.device)
    dice = torch.Generator(options.device).manual_seed(1000 + options.seed)
    losses = []
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(options.task, peak, step, options.steps)
        workers.draw(dice)
        workers.compute()
        losses.append(workers.loss.mean())
        means = exchange.mean(workers.gradients, step)
        for parameter, mean in zip(workers.parameters, means, strict=True):
            parameter.grad = mean.view_as(parameter)
        optimizer.step()
        if step % OFTEN == OFTEN - 1 and not math.isfinite(losses[-1]):
            break
    found = torch.stack(losses).tolist()
    return found[: next((at for at, loss in enumerate(found) if not math.isfinite(loss)), None)]


@torch.no_grad()
def quality(workers: Workers, task: Task, test: HeldOut) -> float:
    """Accuracy on the test images, or loss on some of the test text."""
    count = len(test.targets) if task.higher_is_better else TEST_SEQUENCES
    found: list[Tensor] = []
    for x, y in zip(test.inputs[:count].split(500), test.targets[:count].split(500), strict=True):
        outputs, right = workers.model(x.to(workers.loss.device)), y.to(workers.loss.device)
        if task.higher_is_better:
            found.append((outputs.argmax(1) == right).float())
        else:
            found.append(cross_entropy(outputs.mT, right, reduction="none").mean(1))
    return float(torch.cat(found).mean())


def measure(options: argparse.Namespace) -> None:
    task = load(options.task, options.data)
    test = task.test_data
    together, apart = Workers(options, task, 1), Workers(options, task, options.workers)
    shapes = [p.shape for p in apart.parameters]
    about = environment(options.device) | {
        key: value
        for key, value in vars(options).items()
        if key not in ("out", "read", "methods", "data")
    }
    part, parts = map(int, options.part.split("/"))
    for peak, method in list(product(options.lr, options.methods))[part::parts]:
        start = time.perf_counter()
        exchange = way(method, shapes, options.workers, options.device, options.seed)
        workers = together if exchange.is_linear else apart
        losses = train(workers, options, method, exchange, peak)
        row = {
            "task": options.task,
            "method": method,
            "lr": peak,
            "weights": sum(shape.numel() for shape in shapes),
            "sent": exchange.sent,
            "loss": fmean(losses[-WIDTH:]) if len(losses) == options.steps else None,
            "test": quality(workers, task, test),
            "losses": [round(loss, 4) for loss in losses],
        }
        last = f"{row['loss']:.4f}" if row["loss"] else f"none after {len(losses)} steps"
        print(
            f"{method:40} lr {peak:<8g} {row['sent'] / 1e3:9.1f} kB  loss {last}  "
            f"test {row['test']:.4f}  ({time.perf_counter() - start:.1f} s)",
            flush=True,
        )
        if options.out:
            with options.out.open("a") as out:
                out.write(json.dumps(row | {"about": about}) + "\n")


def read(files: Sequence[Path], targets: Sequence[float]) -> None:
    """Steps to each of some losses: the fewest over rates of learning, and the bytes of these."""
    rows: list[dict[str, Any]] = [json.loads(line) for f in files for line in f.open()]
    methods = sorted({row["method"] for row in rows}, key=lambda m: -_sent(rows, m))
    print(f"{'method':40} {'kB':>9}  " + "  ".join(f"{target:>14}" for target in targets))
    for method in methods:
        cells = []
        for target in targets:
            found = [steps_to(row["losses"], target) for row in rows if row["method"] == method]
            fewest = min((steps for steps in found if steps), default=None)
            text = f"{fewest:5d} {fewest * _sent(rows, method) / 1e6:6.1f} MB" if fewest else "-"
            cells.append(f"{text:>14}")
        print(f"{method:40} {_sent(rows, method) / 1e3:9.1f}  " + "  ".join(cells))


def _sent(rows: Sequence[dict[str, Any]], method: str) -> float:
    return next(float(row["sent"]) for row in rows if row["method"] == method)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--methods", type=str.split)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, help="examples of a worker in a step")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--lr", type=lambda text: [*map(float, text.split())])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true", help="forward and backward in bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="0/1", help="which of the runs: 1/4 is every fourth")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", type=Path, nargs="+", help="show earlier --out instead")
    parser.add_argument("--targets", type=lambda text: [*map(float, text.split())], default=[2.0])
    options = parser.parse_args()
    for name, value in USUAL[options.task].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    torch.set_float32_matmul_precision("high")
    if options.read:
        read(options.read, options.targets)
    else:
        measure(options)


if __name__ == "__main__":
    main()
