"""How a process finds the others: by what torchrun leaves in its environment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from itertools import count

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from fetchsgd.errors import UserError
from fetchsgd.ranks.group import ALONE, PATIENCE, LostError, Ranks, lost_if_broken
from fetchsgd.ranks.near import meet

# Set by torchrun, and by whatever else starts programs for torch.distributed.
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
RUNS = count()  # of this process: texts of one must not be taken for those of another


def started_together(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is one of several processes, or of one that torchrun has started."""
    return all(environment.get(name) for name in NEEDED)


@contextmanager
def joined() -> Iterator[Ranks]:
    """The processes that were started together with this one; `connect` lets them sum up."""
    if not started_together():
        yield ALONE
        return
    was_there = dist.is_initialized()
    store, rank, size = _met()
    store = PrefixStore(f"fetchsgd/{next(RUNS)}", store)
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    yield Ranks(rank, size, local_rank, local_size, store)
    # Not after an error: where a process is missing, to end in order might take for ever.
    if dist.is_initialized() and not was_there:
        dist.destroy_process_group()


@cache  # one for all runs of a process: others may hold on to what the first keeps for them
def _met() -> tuple[Store, int, int]:
    try:
        store, rank, size = next(rendezvous("env://"))
    except RuntimeError as error:
        raise LostError(f"the other processes of this run cannot be reached: {error}") from error
    return store, rank, size


def device_of(ranks: Ranks, device: torch.device) -> torch.device:
    """The device of this process: GPUs take turns, unless the settings name one."""
    if ranks.is_alone or device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", ranks.local_rank % torch.cuda.device_count())


def connect(ranks: Ranks, device: torch.device) -> None:
    """From here on tensors on this device can be summed: by NCCL if each process has its GPU."""
    if ranks.store is None:
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    said = ranks.all_say(f"{device.type} {_name(device)}")
    kinds = {text.split()[0] for text in said}
    if len(kinds) > 1:
        raise UserError(
            "some processes of this run train on the CPU and others on a GPU: give --set "
            "train.device=cpu, or start fewer of them"
        )
    if device.type == "cpu" and not ranks.near:
        with lost_if_broken():
            found = meet(ranks.rank, ranks.size, ranks.all_say, PATIENCE)
        ranks.near.extend([] if found is None else [found])
    if dist.is_initialized():
        return
    shares_a_gpu = device.type == "cpu" or len(set(said)) < len(said)
    backend = "gloo" if shares_a_gpu else "cpu:gloo,cuda:nccl"
    dist.init_process_group(
        backend,
        store=PrefixStore("group", ranks.store),
        rank=ranks.rank,
        world_size=ranks.size,
        timeout=timedelta(seconds=PATIENCE),
    )


def _name(device: torch.device) -> str:
    """A name that no other device has, on any machine."""
    if device.type == "cpu":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)
