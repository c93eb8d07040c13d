"""Speed and memory of training rounds, as ratios within one run.

    python benchmarks/rounds.py --device cpu  --out benchmarks/results/rounds-cpu.json
    python benchmarks/rounds.py --device cuda --out benchmarks/results/rounds-cuda.json

Compared are: a FetchSGD round with an uncompressed one; a round in which every client's gradient is
quantised with a FetchSGD round of floats; a whole cohort at once with the same round taken one
client after another; memory after many rounds with memory after a few; and a round of a million
clients with one of a thousand. What is compared takes its rounds in turn. The work is the digits
task on a CPU, and a network of ResNet9's size with random images on a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

# Where others share the cores, threads that spin while they wait make a round tens of times slower.
# Threads that sleep instead slow down small batches on several threads, so what works on small
# batches is measured on one thread as well. It must be set before torch is loaded.
os.environ["OMP_WAIT_POLICY"] = "passive"

import numpy as np
import torch
from measure import Name, environment, medians, report
from numpy.typing import NDArray
from torch import Tensor, nn

from fetchsgd.clients.layer_gradients import full_precision
from fetchsgd.runs.settings import resolve
from fetchsgd.server.rounds import Merged, Training, train_rounds
from fetchsgd.simulation import Run
from fetchsgd.tasks import ClientData, Task, cross_entropy, is_correct

MB = 1e6
Row = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """What is trained on a device, and the targets for it."""

    task: str
    settings: tuple[str, ...]
    fetchsgd: tuple[str, ...]
    topk: tuple[str, ...]  # true_topk and local_topk
    cohort: int  # clients of the rounds that are compared with uncompressed ones, or with floats
    quantised: tuple[str, ...]  # clients' own gradients in few bits
    against_uncompressed: float
    against_loop: float
    against_floats: float | None  # quantised per client


QUANTISED = ("upload.quantiser=shared_step", "download.grid=steps")
WORK = {
    "cpu": Work(
        "digits", ("examples_per_client=5",), ("hash=fixed", "k=2000", "cols=8000"),
        ("k=2000",), 20, ("k=2000", *QUANTISED), 1.10, 0.2, None,
    ),
    "cuda": Work(
        "rounds:resnet9", (), ("hash=fixed", "k=50000", "cols=650000"), ("k=50000",), 100,
        ("k=10000", *QUANTISED), 1.05, 0.1, 2.5,
    ),
}  # fmt: skip
LOOP_COHORT = 100
EAGER = ("cuda_graphs=false",)  # a graph would keep the precision in which it was recorded


def resnet9(seed: int = 0, clients: int = 10_000) -> Task:
    """Random images of CIFAR's size for clients of 5; the network of the paper's size."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(5 * clients, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (5 * clients,), generator=generator)
    data = ClientData(images, labels, np.arange(clients + 1) * 5)
    return synthetic("resnet9", data, residual_network)


def million(seed: int = 0, clients: int = 1_000_000) -> Task:
    """A client is one example of 8 numbers, the same for all, so that the data takes no memory."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(1, 8, generator=generator).expand(clients, 8)
    labels = torch.ones(1, dtype=torch.int64).expand(clients)
    data = ClientData(inputs, labels, np.arange(clients + 1))
    return synthetic("million", data, lambda: nn.Linear(8, 10))


def synthetic(name: str, data: ClientData, model: Callable[[], nn.Module]) -> Task:
    test = data.inputs[:10], data.targets[:10]
    return Task(
        name=name, train=data, test_inputs=test[0], test_targets=test[1], model=model,
        loss=cross_entropy, quality=is_correct,
    )  # fmt: skip


def residual_network() -> nn.Module:
    """ResNet9 without batch norm: 6.6 million weights."""
    return nn.Sequential(
        convolution(3, 64), convolution(64, 128), nn.MaxPool2d(2), Residual(128),
        convolution(128, 256), nn.MaxPool2d(2),
        convolution(256, 512), nn.MaxPool2d(2), Residual(512),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def convolution(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.ReLU())


class Residual(nn.Module):
    """Two convolutions that add to what they are given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(convolution(width, width), convolution(width, width))

    def forward(self, inputs: Tensor) -> Tensor:
        sum: Tensor = inputs + self.inner(inputs)
        return sum


def set_up(task: str, method: str, device: str, cohort: int, settings: tuple[str, ...] = ()) -> Run:
    """A run of more rounds than are taken, with cohorts all of one size."""
    fixed = (f"device={device}", f"clients_per_round={cohort}", "sampling=uniform", "epochs=60",
             "schedule.kind=constant", "schedule.peak=0.001")  # fmt: skip
    return Run(resolve({"task": {"name": task}, "method": {"name": method}}, [*fixed, *settings]))


def timed(each: Mapping[Name, Iterator[object]], device: str, repeats: int) -> dict[Name, float]:
    """Median seconds of a round of each, taken in turn."""
    steps = {name: partial(next, rounds) for name, rounds in each.items()}
    for step in steps.values():
        for _ in range(3):
            step()
    return medians(steps, device, repeats)


@dataclass(frozen=True)
class OneAfterAnother:
    """Lines 5 to 10 of Algorithm 1 as they read: for each client its gradient, compressed, added.

    This is how a careful user would write the loop: an ordinary module and ordinary autograd, the
    weights loaded once a round, the data on the device already, and no wait for the device inside.
    """

    run: Run
    threads: int

    def rounds(self) -> Iterator[object]:
        """Algorithm 1's loop with these clients."""
        run, setup = self.run, self.run.setup
        return train_rounds(
            run.start(), setup.rounds, self, setup.rate, run.method, setup.grid, setup.server_rate
        )

    def __call__(self, training: Training, _rate: float) -> Merged:
        clients = self.run.setup.sampler.cohort(training.round)
        training.ledger.download(clients, training.round, training.place)
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            return self.work(training.weights, clients)
        finally:
            torch.set_num_threads(before)

    def work(self, weights: Tensor, clients: NDArray[np.int64]) -> Merged:
        setup, data = self.run.setup, self.run.cohort.gatherer.data
        model = setup.model
        parameters = list(model.module.parameters())
        with torch.no_grad():
            for parameter, value in zip(parameters, model.views(weights), strict=True):
                parameter.copy_(value)
        total, losses = None, weights.new_zeros(())
        for client in clients:
            mine = slice(*data.offsets[client : client + 2])
            loss = setup.trainer.loss(model.module(data.inputs[mine]), data.targets[mine]).mean()
            sent = self.compress(list(torch.autograd.grad(loss, parameters)))
            total = sent if total is None else total + sent
            losses += loss.detach()
        assert total is not None
        count = len(clients)
        numbers = count * self.run.method.message.numbers
        return Merged(total / count, clients, numbers, 4 * numbers, losses / count)

    def compress(self, gradient: list[Tensor]) -> Tensor:
        message = self.run.method.message
        if message.linear:
            return message.compress(gradient)
        whole = torch.cat([piece.flatten() for piece in gradient])
        chosen = whole.abs().topk(message.numbers, sorted=False).indices
        return torch.zeros_like(whole).index_copy_(0, chosen, whole[chosen])


def methods(device: str, repeats: int) -> list[Row]:
    """FetchSGD, and the others for information, against an uncompressed round."""
    work = WORK[device]
    options = {"fetchsgd": work.fetchsgd, "true_topk": work.topk, "uncompressed": ()}
    runs = {
        name: set_up(work.task, name, device, work.cohort, work.settings + own)
        for name, own in options.items()
    }
    rounds = {name: run.train(run.start()) for name, run in runs.items()}
    seconds = timed(rounds, device, repeats)
    dim = runs["fetchsgd"].setup.model.dim
    return [
        {
            "what": f"{work.task} d={dim} n={work.cohort}: {name} / uncompressed",
            "measured": f"{taken * 1e3:.3f} ms",
            "ratio": taken / seconds["uncompressed"],
            "target": work.against_uncompressed if name == "fetchsgd" else None,
        }
        for name, taken in seconds.items()
    ]


def quantised(device: str, repeats: int) -> list[Row]:
    """Every client's gradient in two bits, against one sketch of the mean in floats.

    As on CIFAR10: passes in 16 bits where the device has them, and weights that decay. Ten rounds
    at a time, so that launching them counts as well.
    """
    work, at_once = WORK[device], 10
    settings = (*work.settings, "dtype=auto", "weight_decay=0.0005")
    options = {"fetchsgd": work.fetchsgd, "true_topk": work.quantised}
    runs = {
        name: set_up(work.task, name, device, work.cohort, settings + own)
        for name, own in options.items()
    }
    groups = {name: in_groups(run.train(run.start()), at_once) for name, run in runs.items()}
    seconds = timed(groups, device, repeats)
    floats, few = (seconds[name] / at_once for name in ("fetchsgd", "true_topk"))
    return [
        {
            "what": f"{work.task} n={work.cohort}: quantised per client / float32 FetchSGD",
            "measured": f"{few * 1e3:.3f} ms",
            "ratio": few / floats,
            "target": work.against_floats,
        }
    ]


def in_groups(rounds: Iterator[object], count: int) -> Iterator[None]:
    while True:
        take(rounds, count)
        yield


def cohorts(device: str, repeats: int) -> list[Row]:
    """All clients at once, as a share of the time of one after another.

    On a CPU the loop runs on all threads and on one; the target is for the faster of the two.
    """
    work, threads = WORK[device], torch.get_num_threads()
    rows = []
    for name, own, target in (
        ("fetchsgd", work.fetchsgd, work.against_loop),
        ("local_topk", work.topk, None),
    ):
        run = set_up(work.task, name, device, LOOP_COHORT, work.settings + own)
        agree(set_up(work.task, name, device, LOOP_COHORT, (*work.settings, *own, *EAGER)))
        loops = {threads} if device == "cuda" else {threads, 1}
        rounds = {n: OneAfterAnother(run, n).rounds() for n in sorted(loops)[::-1]}
        seconds = timed({0: run.train(run.start())} | rounds, device, repeats)
        fastest = min(rounds, key=seconds.__getitem__)
        rows += [
            {
                "what": f"{work.task} n={LOOP_COHORT}: {name} / client by client, threads={n}",
                "measured": f"{seconds[0] * 1e3:.3f} ms",
                "ratio": seconds[0] / seconds[n],
                "target": target if n == fastest else None,
            }
            for n in rounds
        ]
    return rows


def agree(run: Run) -> None:
    """The loop is the same computation, or the comparison says nothing.

    With products of whole float32: of TF32's rounding top-k would make something else, for among
    near ties it chooses by the last bits, and a number that is chosen or not is a large difference.
    """
    rate = run.setup.rate(0)
    with full_precision():
        ours = run.clients(run.start(), rate).mean
        loop = OneAfterAnother(run, torch.get_num_threads())(run.start(), rate).mean
    difference = float((ours - loop).norm() / ours.norm())
    assert difference < 1e-2, f"the loop differs from the cohort by {difference:.2g} of its length"


def memory(device: str) -> list[Row]:
    """Resident memory after 500 rounds beyond that after 50."""
    work = WORK[device]
    run = set_up(work.task, "fetchsgd", device, work.cohort, work.settings + work.fetchsgd)
    rounds = run.train(run.start())
    take(rounds, 50)
    before = held(device)
    take(rounds, 450)
    growth = (held(device) - before) / MB
    return [
        {
            "what": f"{work.task}: growth from round 50 to round 500, in MB",
            "measured": f"{growth:.2f} MB",
            "ratio": growth,
            "target": 1.0,
        }
    ]


def population(device: str, repeats: int) -> list[Row]:
    """A million clients: memory for each beyond its data, and a round against one of a thousand."""
    settings = ("k=20", "cols=40")
    # Both plan 1,000 rounds, for the ledger has a number for each.
    small, large = (("clients=1000", "epochs=100"), ("clients=1000000", "epochs=0.1"))
    run = set_up("rounds:million", "fetchsgd", device, 100, settings + small)
    few = run.train(run.start())
    take(few, 20)
    before = held(device)
    run = set_up("rounds:million", "fetchsgd", device, 100, settings + large)
    many = run.train(run.start())
    take(many, 20)
    each = (held(device) - before - on_device(run, device)) / run.setup.sampler.num_clients
    seconds = timed({"thousand": few, "million": many}, device, repeats)
    return [
        {
            "what": "1,000,000 clients, n=100: a round / the same with 1,000 clients",
            "measured": f"{seconds['million'] * 1e3:.3f} ms",
            "ratio": seconds["million"] / seconds["thousand"],
            "target": None,
        },
        {
            "what": "1,000,000 clients: bytes a client beyond the data",
            "measured": f"{each:.1f} B",
            "ratio": each,
            "target": None,
        },
    ]


def on_device(run: Run, device: str) -> int:
    """Bytes of the examples themselves: nothing where they are views of a single one."""
    data = run.cohort.gatherer.data
    return 0 if device == "cpu" else data.inputs.nbytes + data.targets.nbytes


def take(rounds: Iterator[object], count: int) -> None:
    for _ in islice(rounds, count):
        pass


def held(device: str) -> int:
    """Bytes that the process holds, on the host and on the device."""
    gc.collect()
    # Memory that is freed but not given back would hide growth, or look like it.
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident = pages * 4096
    if device == "cuda":
        torch.cuda.synchronize()
        resident += torch.cuda.memory_allocated()
    return resident


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=51)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    rows = methods(options.device, options.repeats)
    rows += quantised(options.device, max(options.repeats // 5, 3))
    rows += cohorts(options.device, max(options.repeats // 3, 3))
    rows += memory(options.device) + population(options.device, options.repeats)
    about = environment(options.device) | {"load before": load}
    report(rows, about, options.out)


if __name__ == "__main__":
    main()
