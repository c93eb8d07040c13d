"""The processes of a run: which of them this one is, and what they do together.

Tensors go through `torch.distributed`, texts through the store by which its processes find each
other. Neither is pickled.
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

POLL = 0.01  # seconds; while we look again and again, signals are handled
PATIENCE = 1800.0  # seconds for another process to come as far: it may have to download its data

Tensors = dict[str, Tensor]


class LostError(MachineError):
    """Another process has ended before its time, or cannot be reached: exit code 4."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """`rank` of `size` processes; `local_rank` of those on this machine. No store: alone."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    store: Store | None = None
    _texts: Iterator[int] = field(default_factory=count, repr=False)

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
        if not self.is_alone:
            part = part.contiguous()
            with lost_if_broken():
                dist.all_reduce(part)
        return part

    def most(self, part: Tensor) -> Tensor:
        """The largest of each number over all processes. The part may be overwritten."""
        if not self.is_alone:
            with lost_if_broken():
                dist.all_reduce(part, dist.ReduceOp.MAX)
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
    except RuntimeError as error:
        raise LostError("another process of this run has ended") from error
