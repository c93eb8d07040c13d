"""The processes of a run: which of them this one is, and what they do together.

Tensors go through `torch.distributed`, or through memory that processes on one machine share
(near.py); texts go through the store by which processes find each other. None is pickled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from fetchsgd.errors import MachineError, UserError
from fetchsgd.ranks.near import Near

POLL = 0.01  # seconds; while we look again and again, signals are handled
PATIENCE = 1800.0  # seconds for another process to come as far: it may have to download its data

Tensors = dict[str, Tensor]


class LostError(MachineError):
    """Another process has ended before its time, or cannot be reached: exit code 4."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """`rank` of `size` processes; `local_rank` of those on this machine. No store: alone.

    near: how tensors on the CPU are summed, once all processes have met on one machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    store: Store | None = None
    _texts: Iterator[int] = field(default_factory=count, repr=False)
    near: list[Near] = field(default_factory=list, repr=False)  # at most one

    @property
    def is_alone(self) -> bool:
        return self.store is None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    # --- texts, before there is a device

    def all_say(self, text: str) -> list[str]:
        """What each process says, in their order. All must ask alike, and in one order."""
        if self.store is None:
            return [text]
        number = next(self._texts)
        self.store.set(f"text/{number}/{self.rank}", text)
        return [self._heard(f"text/{number}/{rank}") for rank in range(self.size)]

    def first_says(self, text: str) -> str:
        """What process 0 says; the others wait for it."""
        if self.store is None:
            return text
        key = f"first/{next(self._texts)}"
        if self.is_first:
            self.store.set(key, text)
            return text
        return self._heard(key)

    def _heard(self, key: str) -> str:
        assert self.store is not None
        until = time.monotonic() + PATIENCE
        with lost_if_broken():
            while not self.store.check([key]):
                if time.monotonic() > until:
                    raise LostError(
                        f"another process of this run has said nothing for {PATIENCE / 60:.0f} "
                        "minutes"
                    )
                time.sleep(POLL)
            text: str = self.store.get(key).decode()
            return text

    def must_agree(self, what: str, text: str) -> None:
        """UserError unless all processes say the same; `what` begins the sentence."""
        said = self.all_say(text)
        for rank, other in enumerate(said):
            if other != said[0]:
                raise UserError(
                    f"{what} differ between the processes of this run: {said[0]} in process 0, "
                    f"{other} in process {rank}; start all with the same command and data"
                )

    # --- tensors

    def sum(self, part: Tensor) -> Tensor:
        """The sum over all processes, the same bits in each. The part may be overwritten."""
        return part if self.is_alone else self._reduced(part.contiguous(), is_sum=True)

    def sum_both(self, part: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
        """Two sums at the price of one, of a tensor and of a number of the same type."""
        if self.is_alone:
            return part, number
        both = self.sum(torch.cat([part.reshape(-1), number.view(1)]))
        return both[:-1].view(part.shape), both[-1]

    def most(self, part: Tensor) -> Tensor:
        """The largest of each number over all processes. The part may be overwritten."""
        return part if self.is_alone else self._reduced(part.contiguous(), is_sum=False)

    def _reduced(self, part: Tensor, is_sum: bool) -> Tensor:
        with lost_if_broken():
            if self.near and part.device.type == "cpu":
                self.near[0].join(part, torch.add if is_sum else torch.maximum)
            else:
                dist.all_reduce(part, dist.ReduceOp.SUM if is_sum else dist.ReduceOp.MAX)
        return part

    def from_first(self, tensors: Tensors | None, device: torch.device) -> Tensors | None:
        """What process 0 has; the others get it on the device."""
        if self.is_alone:
            return tensors
        shapes = None
        if tensors is not None:
            shapes = {n: [str(part.dtype), *part.shape] for n, part in tensors.items()}
        shapes = json.loads(self.first_says(json.dumps(shapes)))
        if shapes is None:
            return None
        found = {}
        for name, (dtype, *shape) in shapes.items():
            if self.is_first:
                assert tensors is not None
                part = tensors[name].to(device).contiguous()
            else:
                kind = getattr(torch, dtype.removeprefix("torch."))
                part = torch.empty(shape, dtype=kind, device=device)
            if part.numel():
                with lost_if_broken():  # as bytes: gloo does not know 16-bit integers
                    dist.broadcast(part.view(-1).view(torch.uint8), 0)
            found[name] = part
        return found

    def wait_for_all(self) -> None:
        """Until every process has come here. Process 0, which may keep the store, leaves last."""
        self.all_say("")
        if self.store is None:
            return
        number = next(self._texts)
        if self.is_first:
            for rank in range(1, self.size):
                self._heard(f"left/{number}/{rank}")
        else:
            self.store.set(f"left/{number}/{self.rank}", "")

    def check_same(self, weights: Tensor, round: int) -> None:
        """MachineError if processes do not hold the same weights, to the bit."""
        if self.is_alone:
            return
        bits = weights.view(torch.int32).sum(dtype=torch.int64)
        most = self.most(torch.stack([bits, -bits]))
        if bool(most[0] != -most[1]):
            raise MachineError(
                f"after round {round} the processes of this run do not hold the same weights: "
                "their devices or versions of torch compute differently; start all on the same "
                "kind of device, and go on with --resume"
            )


ALONE = Ranks()


@contextmanager
def lost_if_broken() -> Iterator[None]:
    """What torch says when a connection breaks is a RuntimeError; so are mistakes of ours."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, OSError) as error:
        raise LostError("another process of this run has ended") from error
