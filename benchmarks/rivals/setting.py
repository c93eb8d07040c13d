"""What is the same for everyone: data, model, cohort, one local step, and how rounds are timed."""

from __future__ import annotations

import json
import statistics
from functools import lru_cache
from importlib.metadata import version
from itertools import pairwise

import torch
from torch import Tensor, nn

from fetchsgd.randomness import number
from fetchsgd.server.sampling import Sampler
from fetchsgd.tasks import Task
from fetchsgd.tasks.digits import digits

COHORT = 20  # clients a round
EXAMPLES = 5  # of a client
RATE = 0.1  # of the one step that a client takes on its examples
WARM_UP = 5  # rounds that are not timed: processes start, kernels compile, caches fill
ROUNDS = 40  # rounds that are


@lru_cache
def task() -> Task:
    return digits(examples_per_client=EXAMPLES)


@lru_cache
def sampler() -> Sampler:
    return Sampler(task().train.num_clients, COHORT, "uniform", 0)


def client(which: int) -> tuple[Tensor, Tensor]:
    data = task().train
    mine = slice(*data.offsets[which : which + 2])
    return data.inputs[mine], data.targets[mine]


def network() -> nn.Module:
    """With the weights that a run of ours with seed 0 starts from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number(0, "weights"))
        return task().model()


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets)


@torch.no_grad()
def print_result(name: str, ends: list[float], module: nn.Module, packages: list[str]) -> None:
    """One line of JSON from the times at which rounds ended, the first of them untimed.

    The loss of the trained model shows that everyone did the same work.
    """
    taken = [after - before for before, after in pairwise(ends[WARM_UP - 1 :])]
    assert len(taken) == ROUNDS, f"{len(taken)} rounds were timed instead of {ROUNDS}"
    data = task().train
    result = {
        "name": name,
        "rounds_per_second": 1 / statistics.median(taken),
        "train_loss": float(mean_loss(module(data.inputs), data.targets)),
        "versions": {package: version(package) for package in [*packages, "torch"]},
    }
    print(json.dumps(result))
