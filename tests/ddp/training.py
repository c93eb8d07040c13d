"""What the scenarios share: a small network, its data, training, and digests."""

import hashlib
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from fetchsgd.ddp import SketchState, sketch_hook
from fetchsgd.tasks.digits import digits

WORLD = 2
BATCH = 16
SMALL_BUCKETS = 0.004  # MB
EVERYTHING = {"compression": 8.0, "top_k": 0.1, "momentum": 0.5, "decode": "prior"}


def network(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    layers = nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.LayerNorm(32), nn.Linear(32, 10)
    return nn.Sequential(nn.Flatten(), *layers).to(dtype)


def wrapped(model, bucket_cap_mb=SMALL_BUCKETS, **options):
    """DDP with the hook if there are options, and its state."""
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb)
    if not options:
        return ddp, None
    state = SketchState(ddp, **{"exact_below": 100} | options)
    ddp.register_comm_hook(state, sketch_hook)
    return ddp, state


DATA = digits().train
INPUTS, TARGETS = DATA.inputs, DATA.targets


def batch(step, rank):
    chosen = torch.randperm(len(TARGETS), generator=torch.Generator().manual_seed(step))
    chosen = chosen[rank * BATCH : (rank + 1) * BATCH]
    return INPUTS[chosen], TARGETS[chosen]


def loss_of(ddp, step, rank):
    inputs, targets = batch(step, rank)
    dtype = next(ddp.parameters()).dtype
    return cross_entropy(ddp(inputs.to(dtype)).float(), targets)


def train(ddp, steps, rate=0.05, first=0):
    optimizer = torch.optim.SGD(ddp.parameters(), lr=rate)
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(ddp, step, dist.get_rank()).backward()
        optimizer.step()


def weights(model):
    return torch.cat([p.detach().float().flatten() for p in model.parameters()])


def digest(*tensors):
    hash = hashlib.sha256()
    for tensor in tensors:
        hash.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return hash.hexdigest()


def state_digest(state):
    held = state.state_dict()
    numbers = [t for fields in held["parameters"].values() for t in fields.values()]
    names = json.dumps([held["step"], held["settings"], list(held["parameters"])])
    return digest(*numbers) + hashlib.sha256(names.encode()).hexdigest()
