"""What the tests of the hook look at, from two real processes: python scenarios.py FOLDER PORT

Each scenario is a function of a folder that returns what can be written as JSON. Both ranks write
theirs.
"""

import contextlib
import importlib
import json
import os
import runpy
import signal
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from group_scenarios import GROUPED
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from training import (
    EVERYTHING,
    SMALL_BUCKETS,
    WORLD,
    batch,
    digest,
    network,
    state_digest,
    train,
    weights,
    wrapped,
)

from fetchsgd.ddp import LowRankState, SketchState, low_rank_hook, sketch_hook
from fetchsgd.ddp.levels import Levels
from fetchsgd.errors import UserError
from fetchsgd.sketch import CountSketch
from fetchsgd.tasks.digits import digits

EXAMPLE = Path(__file__).parents[2] / "examples/ddp.py"


def as_plain(folder):
    """With a cell for each weight, and before the first compressed step."""
    found = {}
    plain, _ = wrapped(network())
    train(plain, 5)
    for name, options in {
        "a cell for each": {"compression": 1.0, "cells": "float32"},
        "warm-up": {"compression": 50.0, "start_iter": 5},
        "one compressed": {"compression": 50.0, "start_iter": 4},
    }.items():
        ddp, _ = wrapped(network(), **options)
        train(ddp, 5)
        found[name] = float((weights(ddp) - weights(plain)).abs().max())
    return found


KINDS = {
    "float32": {"cells": "float32"},
    "bfloat16": {"cells": "bfloat16"},
    "int16": {"cells": "int16"},
    "int8": {"cells": "int8"},
    "int4": {"cells": "int4"},
    "prior": {"decode": "prior"},
    "top-k": {"top_k": 0.1, "momentum": 0.9},
    "top-k without momentum": {"top_k": 0.1},
    "momentum": {"momentum": 0.5},
    "no balance": {"balance": 0.0},
    "vectors too": {"exact_below": 0},
    "levels of bf16": {"cells": "int8"},
    "prior, top-k of bf16": {"cells": "bfloat16", "top_k": 0.1, "decode": "prior"},
}


def replicas(folder):
    """After 20 steps, in which buckets were rebuilt after the first."""
    found = {}
    for name, options in KINDS.items():
        dtype = torch.bfloat16 if name.endswith("bf16") else torch.float32
        ddp, state = wrapped(network(dtype), compression=8.0, **options)
        train(ddp, 20, rate=0.01)
        found[name] = [digest(weights(ddp)), state_digest(state)]
    return found


def low_rank(folder):
    """Several buckets, a layer that nobody uses, and an accuracy after three passes."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(
        Alternating(), find_unused_parameters=True, bucket_cap_mb=SMALL_BUCKETS
    )
    state = LowRankState(ddp, 2)
    ddp.register_comm_hook(state, low_rank_hook)
    train(ddp, 6)
    found = {"weights": digest(weights(ddp)), "finite": bool(weights(ddp).isfinite().all())}
    ddp = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
    state = LowRankState(ddp, 4)
    ddp.register_comm_hook(state, low_rank_hook)
    train(ddp, 80, rate=0.2)
    task = digits()
    with torch.no_grad():
        right = ddp.module(task.test_inputs).argmax(1) == task.test_targets
    return found | {"accuracy": float(right.float().mean()), "sent": state.sent_bytes}


def rebuilt(folder):
    """Which parameters were in which bucket of which step."""
    ddp = DistributedDataParallel(network(), bucket_cap_mb=SMALL_BUCKETS)
    state = SketchState(ddp, 8.0, exact_below=100)
    seen = []

    def watching(state, bucket):
        seen.append([state.step, bucket.index(), state.names_of(bucket.parameters())])
        return sketch_hook(state, bucket)

    ddp.register_comm_hook(state, watching)
    train(ddp, 3)
    return seen


def accumulated(folder):
    """Two halves without a reduction in between, beside both at once."""
    found = []
    for parts in (1, 2):
        ddp, state = wrapped(network(), compression=8.0, cells="float32")
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        for step in range(4):
            optimizer.zero_grad()
            inputs, targets = batch(step, dist.get_rank())
            pieces = list(zip(inputs.chunk(parts), targets.chunk(parts), strict=True))
            for x, y in pieces[:-1]:
                with ddp.no_sync():
                    (cross_entropy(ddp(x), y) / parts).backward()
            x, y = pieces[-1]
            (cross_entropy(ddp(x), y) / parts).backward()
            optimizer.step()
        found.append((weights(ddp), state.step))
    return {"difference": float((found[0][0] - found[1][0]).abs().max()), "steps": found[1][1]}


class Alternating(nn.Module):
    """Ranks use different layers in every other step."""

    def __init__(self):
        super().__init__()
        self.body = network()[:-1]
        self.heads = nn.ModuleList(nn.Linear(32, 10) for _ in range(3))
        self.step = 0

    def forward(self, inputs):
        self.step += 1
        return self.heads[(self.step * dist.get_rank()) % 2](self.body(inputs))


def unused(folder):
    """One head is used by nobody, another by one rank at times; gradients are views of buckets."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(
        Alternating(), find_unused_parameters=True, gradient_as_bucket_view=True
    )
    state = SketchState(ddp, 8.0, exact_below=100)
    ddp.register_comm_hook(state, sketch_hook)
    before = weights(ddp.module.heads[2])
    train(ddp, 6)
    return {
        "weights": digest(weights(ddp)),
        "state": state_digest(state),
        "untouched": weights(ddp.module.heads[2]).equal(before),
        "finite": bool(weights(ddp).isfinite().all()),
    }


def joined(folder):
    """Rank 0 has fewer batches."""
    ddp, state = wrapped(network(), compression=8.0)
    with Join([ddp]):
        train(ddp, 4 if dist.get_rank() == 0 else 7)
    return {"weights": digest(weights(ddp)), "state": state_digest(state), "steps": state.step}


def learned(folder):
    """Accuracy on the test set after three passes, plain and compressed."""
    task, found = digits(), {}
    for name, options in {
        "plain": {},
        "8x": {"compression": 8.0},
        "8x, prior": {"compression": 8.0, "decode": "prior"},
    }.items():
        ddp, state = wrapped(network(), **options)
        train(ddp, 80, rate=0.2)
        with torch.no_grad():
            right = ddp.module(task.test_inputs).argmax(1) == task.test_targets
        sent = state.sent_bytes if state else 0
        found[name] = {"accuracy": float(right.float().mean()), "sent": sent}
    return found


def not_finite(folder):
    """One rank has an infinite gradient in one step."""
    ddp, state = wrapped(network(), **EVERYTHING)
    train(ddp, 3)
    before = state.memory.copies()
    inputs, targets = batch(3, dist.get_rank())
    factor = torch.inf if dist.get_rank() == 1 else 1.0
    ddp.zero_grad()
    (cross_entropy(ddp(inputs), targets) * factor).backward()
    after = state.memory.copies()
    return {
        "nan": all(bool(p.grad.isnan().any()) for p in ddp.parameters()),
        "kept": all(
            after[name][field].equal(tensor)
            for name, fields in before.items()
            for field, tensor in fields.items()
        ),
    }


def sentence(action):
    try:
        action()
    except UserError as error:
        return str(error)
    return ""


def mistakes(folder):
    """What users are told."""
    rank = dist.get_rank()
    double, _ = wrapped(network(torch.float64), compression=8.0)
    apart, _ = wrapped(network(), compression=8.0, seed=rank)
    other = DistributedDataParallel(network())
    other.register_comm_hook(SketchState(network(), 8.0), sketch_hook)
    return {
        "dtype": sentence(lambda: train(double, 1)),
        "apart": sentence(lambda: train(apart, 1)),
        "model": sentence(lambda: train(other, 1)),
    }


def saved(folder):
    """Ten steps, a checkpoint by rank 0 alone, and five more; with one bucket, then and later."""
    ddp, state = wrapped(network(), 25.0, **EVERYTHING)
    train(ddp, 10)
    if dist.get_rank() == 0:
        kept = {"model": ddp.module.state_dict(), "hook": state.state_dict()}
        torch.save(kept, folder / "checkpoint.pt")
    train(ddp, 5, first=10)
    return {"weights": digest(weights(ddp)), "state": state_digest(state)}


def resumed(folder):
    """In new processes: the same five steps, from that checkpoint."""
    kept = torch.load(folder / "checkpoint.pt", weights_only=True)
    model = network(seed=1)
    model.load_state_dict(kept["model"])
    ddp, state = wrapped(model, 25.0, **EVERYTHING)
    state.load_state_dict(kept["hook"])
    train(ddp, 5, first=10)
    return {"weights": digest(weights(ddp)), "state": state_digest(state)}


ALONE = [
    as_plain,
    replicas,
    low_rank,
    rebuilt,
    accumulated,
    unused,
    joined,
    learned,
    not_finite,
    mistakes,
    *GROUPED,
]


def take_part(rank, folder, part, scenarios):
    dist.init_process_group("gloo", f"file://{folder}/meeting-{part}", rank=rank, world_size=WORLD)
    found = {}
    for scenario in scenarios:
        found[scenario.__name__] = scenario(folder)
    (folder / f"{part}-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def run_example(rank, folder):
    """As torchrun starts it."""
    port = sys.argv[2]
    place = {"RANK": rank, "WORLD_SIZE": WORLD, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()}
    sys.argv = [str(EXAMPLE), "--compression", "32"]
    with (folder / f"example-{rank}.txt").open("w") as out, contextlib.redirect_stdout(out):
        runpy.run_path(str(EXAMPLE), run_name="__main__")


def compile_kernels():
    """Once for all processes that are forked; and imports that a first step would do."""
    importlib.import_module("torch._dynamo")
    sketch = CountSketch(100, 1, 10, hash="permutation")
    for numbers in (torch.zeros(100), torch.zeros(100, dtype=torch.bfloat16)):
        sketch.sketch([numbers])
    sketch.estimate(sketch.zeros())
    sketch.spread(sketch.fold(torch.zeros(100)))
    Levels(8, WORLD).pack(torch.zeros(10), torch.ones(()), 0, 0)


def pair(part):
    """Two processes, forked so that imports and kernels are theirs already; run to their ends."""
    children = []
    for rank in range(WORLD):
        child = os.fork()
        if child == 0:
            try:
                part(rank)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    while children:
        child, status = os.wait()
        children.remove(child)
        if status:
            for other in children:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)


def main(folder):
    # DDP has its own opinion on the strides of gradients and on threads.
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    compile_kernels()
    pair(lambda rank: take_part(rank, folder, "first", [*ALONE, saved]))
    pair(lambda rank: take_part(rank, folder, "fresh", [resumed]))
    pair(lambda rank: run_example(rank, folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
