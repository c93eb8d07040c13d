"""Buckets that are exchanged together, in two real processes: more functions for scenarios.py."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy
from training import batch, digest, network, state_digest, train, weights, wrapped

from fetchsgd.ddp import hook

ALL, SOME = 1000.0, 0.002  # MB
TINY_BUCKETS, ONE_BUCKET = 0.0005, 25.0
KINDS = {
    "float32": {"cells": "float32"},
    "int16": {"cells": "int16"},
    "int4": {"cells": "int4"},
    "no balance": {"balance": 0.0},
    "prior": {"decode": "prior"},
    "top-k": {"top_k": 0.1, "momentum": 0.9},
    "feedback": {"feedback": 0.5},
    "warm-up": {"start_iter": 2},
    "int8 of bf16": {"cells": "int8"},
}


def as_one_bucket(folder):
    """All buckets of a step together, beside a bucket that has room for everything."""
    found = {}
    for name, options in KINDS.items():
        dtype = torch.bfloat16 if name.endswith("bf16") else torch.float32
        runs = []
        for size in (TINY_BUCKETS, ONE_BUCKET):
            # All tensors are compressed: a bucket of none but exact ones is reduced by itself.
            options = options | {"compression": 8.0, "exact_below": 0, "group_mb": ALL}
            ddp, state = wrapped(network(dtype), size, **options)
            train(ddp, 6, rate=0.01)
            runs.append([digest(weights(ddp)), state_digest(state), state.sent_bytes])
        found[name] = runs
    return found


def watched(ddp, state, seen):
    """Which buckets are exchanged together, from here on."""
    before = hook.exchange_of

    def watching(state, layout, index, step, buffers, rank, world):
        seen.append([step, index, len(buffers), sum(buffer.nbytes for buffer in buffers)])
        return before(state, layout, index, step, buffers, rank, world)

    hook.exchange_of = watching
    try:
        train(ddp, 4)
    finally:
        hook.exchange_of = before


def some_together(folder):
    """Groups of a few buckets each, and each bucket by itself."""
    found = {}
    for name, size in {"alone": 0.0, "by default": None, "some": SOME, "all": ALL}.items():
        ddp, state = wrapped(network(), TINY_BUCKETS, compression=8.0, exact_below=0, group_mb=size)
        seen = []
        watched(ddp, state, seen)
        found[name] = [digest(weights(ddp)), state_digest(state), seen]
    return found


class Mixed(nn.Module):
    """Layers of two kinds of numbers, which DDP never has in one bucket."""

    def __init__(self):
        super().__init__()
        self.body, self.head = network()[:-1], nn.Linear(32, 10).bfloat16()

    def forward(self, inputs):
        return self.head(self.body(inputs).bfloat16())


def mixed_kinds(folder):
    torch.manual_seed(0)
    ddp, state = wrapped(Mixed(), TINY_BUCKETS, compression=8.0, group_mb=ALL)
    seen = []
    watched(ddp, state, seen)
    return [digest(weights(ddp)), state_digest(state), seen]


def joined_together(folder):
    """Rank 0 has fewer batches."""
    found = []
    for size in (ALL, SOME):
        ddp, state = wrapped(network(), TINY_BUCKETS, compression=8.0, group_mb=size)
        with Join([ddp]):
            train(ddp, 4 if dist.get_rank() == 0 else 7)
        found.append([digest(weights(ddp)), state_digest(state), state.step])
    return found


def accumulated_together(folder):
    """Two halves without a reduction in between, beside both at once."""
    found = []
    for parts in (1, 2):
        ddp, state = wrapped(
            network(), TINY_BUCKETS, compression=8.0, cells="float32", group_mb=ALL
        )
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        for step in range(3):
            optimizer.zero_grad()
            inputs, targets = batch(step, dist.get_rank())
            for x, y in list(zip(inputs.chunk(parts), targets.chunk(parts), strict=True))[:-1]:
                with ddp.no_sync():
                    (cross_entropy(ddp(x), y) / parts).backward()
            x, y = inputs.chunk(parts)[-1], targets.chunk(parts)[-1]
            (cross_entropy(ddp(x), y) / parts).backward()
            optimizer.step()
        found.append((weights(ddp), state.step))
    return {"difference": float((found[0][0] - found[1][0]).abs().max()), "steps": found[1][1]}


def not_finite_together(folder):
    """One rank has an infinite gradient in one step: nobody's memory is touched."""
    ddp, state = wrapped(network(), TINY_BUCKETS, compression=8.0, exact_below=0, group_mb=ALL)
    train(ddp, 3)
    before = state_digest(state)
    inputs, targets = batch(3, dist.get_rank())
    factor = torch.inf if dist.get_rank() == 1 else 1.0
    ddp.zero_grad()
    (cross_entropy(ddp(inputs), targets) * factor).backward()
    state.step -= 1
    return {
        "nan": all(bool(p.grad.isnan().all()) for p in ddp.parameters()),
        "kept": state_digest(state) == before,
    }


def failed_reading(folder):
    """What goes wrong in a callback is told where the backward pass waits."""
    ddp, _ = wrapped(network(), TINY_BUCKETS, compression=8.0, group_mb=ALL)
    train(ddp, 2)
    before = hook.Exchange.finish

    def failing(exchange):
        raise ValueError("a table that cannot be read")

    hook.Exchange.finish = failing
    try:
        train(ddp, 1, first=2)
    except Exception as error:
        return str(error)
    finally:
        hook.Exchange.finish = before
    return ""


GROUPED = [
    as_one_bucket,
    some_together,
    mixed_kinds,
    joined_together,
    accumulated_together,
    not_finite_together,
    failed_reading,
]
