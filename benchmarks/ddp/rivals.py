"""What our hook is compared with: bfloat16, PowerSGD, and local top-k by all-gather.

Torch's own hook for bfloat16 refuses CPUs, so the same is written out here. PowerSGD is torch's. It
starts further reductions from callbacks, whose order gloo does not keep, so with gloo it must
have a single bucket.
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.nn.parallel import DistributedDataParallel

from fetchsgd.ddp import LowRankState, SketchState, low_rank_hook, sketch_hook

START = 2  # PowerSGD and top-k keep errors by bucket, and buckets are rebuilt after the first step
ONE_BUCKET = 100_000.0  # MB
KINDS = {
    "cells": str,
    "decode": str,
    "top_k": float,
    "momentum": float,
    "noise_limit": float,
    "balance": float,
    "exact_below": int,
    "feedback": float,
    "group_mb": float,
}


def nothing_hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # noqa: ARG001
    """What any hook costs that is written in Python: for one rank, gradients are their mean."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def bfloat16_hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # noqa: ARG001
    buffer = bucket.buffer()
    rounded = buffer.div(dist.get_world_size()).bfloat16()
    future = dist.all_reduce(rounded, async_op=True).get_future()
    return future.then(lambda _: buffer.copy_(rounded))


class TopK:
    """share: of each bucket's numbers that a rank sends, with their places; the rest waits."""

    def __init__(self, share: float) -> None:
        self.share, self.step = share, 0
        self.errors: dict[int, Tensor] = {}


def top_k_hook(state: TopK, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    buffer, world = bucket.buffer(), dist.get_world_size()
    warm, index = state.step < START, bucket.index()
    if bucket.is_last():
        state.step += 1
    if warm:
        work = dist.all_reduce(buffer.div_(world), async_op=True)
        return work.get_future().then(lambda _: buffer)
    total = buffer + state.errors[index] if index in state.errors else buffer.clone()
    places = total.abs().topk(max(math.ceil(state.share * len(total)), 1), sorted=False).indices
    # One message: places beside the bits of values.
    own = torch.cat([places.int(), total[places].view(torch.int32)])
    total[places] = 0
    state.errors[index] = total
    everyone = [torch.empty_like(own) for _ in range(world)]

    def summed(_: object) -> Tensor:
        buffer.zero_()
        for message in everyone:
            where, values = message.chunk(2)
            buffer.index_add_(0, where.long(), values.contiguous().view(torch.float32) / world)
        return buffer

    return dist.all_gather(everyone, own, async_op=True).get_future().then(summed)


def wrap(model: nn.Module, method: str, seed: int, hooked: bool = False) -> DistributedDataParallel:
    """From a text: plain, bf16, nothing, power:RANK, topk:SHARE, lowrank:RANK:BITS,
    or sketch:COMPRESSION[:OPTION=...].

    `bucket_mb=...` is DDP's own option. hooked: plain DDP too reduces by way of Python.
    """
    kind, *options = method.split(":")
    given = dict(option.split("=") for option in options if "=" in option)
    size = {"bucket_cap_mb": ONE_BUCKET} if kind == "power" else {}
    if "bucket_mb" in given:
        size = {"bucket_cap_mb": float(given.pop("bucket_mb"))}
    ddp = DistributedDataParallel(model, **size)
    if kind == "nothing":
        assert dist.get_world_size() == 1
        ddp.register_comm_hook(None, nothing_hook)
    elif kind == "bf16":
        ddp.register_comm_hook(None, bfloat16_hook)
    elif kind == "power":
        low_rank = power.PowerSGDState(
            None, int(options[0]), START, random_seed=seed, orthogonalization_epsilon=1e-8
        )
        ddp.register_comm_hook(low_rank, power.powerSGD_hook)
    elif kind == "topk":
        ddp.register_comm_hook(TopK(float(options[0])), top_k_hook)
    elif kind == "sketch":
        chosen = {name: KINDS[name](text) for name, text in given.items()}
        state = SketchState(ddp, float(options[0]), seed=seed, **chosen)
        ddp.register_comm_hook(state, sketch_hook)
    elif kind == "lowrank":
        rank, bits = options[:2]
        ours = LowRankState(ddp, int(rank), cells=f"int{bits}", seed=seed)
        ddp.register_comm_hook(ours, low_rank_hook)
    elif kind == "plain" and hooked:
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    elif kind != "plain":
        raise ValueError(f"there is no method {method!r}")
    return ddp
