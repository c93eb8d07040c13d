"""What the states of all hooks have: the model's parameters, the group of ranks, and buckets."""

from __future__ import annotations

import hashlib
import json
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fetchsgd.ddp.layout import Layout, pieces_of
from fetchsgd.errors import UserError

# What hashes and readings follow from; ranks that differ in one of them train apart.
SHARED = "settings, step and memory"


@dataclass(eq=False)
class Seen:
    """A bucket as DDP has handed it over before; the same tensor has the same parameters in it."""

    buffer: weakref.ref[Tensor]
    layout: Layout
    stays: bool = False  # it has come again: those of the first step make room for others
    ready: torch.futures.Future[Tensor] | None = None

    def done(self, buffer: Tensor) -> torch.futures.Future[Tensor]:
        """A future that has the bucket already: one for all steps, since it is always the same."""
        if self.ready is not None:
            return self.ready
        ready: torch.futures.Future[Tensor] = torch.futures.Future()
        ready.set_result(buffer)
        if self.stays:
            self.ready = ready
        return ready


class HookState(ABC):
    """step: how many steps have been taken. sent_bytes: what this rank has handed to all-reduce."""

    def __init__(self, model: nn.Module, process_group: dist.ProcessGroup | None) -> None:
        module = model
        if isinstance(model, DistributedDataParallel):
            module = model.module
            process_group = process_group or model.process_group
        self.names: dict[Tensor, str] = {
            parameter: name
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        if not self.names:
            raise UserError("the model has no trainable parameters, so there is nothing to reduce")
        self.places = {name: place for place, name in enumerate(self.names.values())}
        self.process_group = process_group
        self.step = 0
        self.sent_bytes = 0
        self._agreed_in: dist.ProcessGroup | None = None
        self._over_nccl: tuple[dist.ProcessGroup, bool] | None = None
        self._side: torch.cuda.Stream | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._seen: dict[int, Seen] = {}

    @abstractmethod
    def is_wide(self, shape: torch.Size) -> bool:
        """Whether tensors of that shape are compressed."""

    @property
    def group(self) -> dist.ProcessGroup:
        group = self.process_group or dist.group.WORLD
        if group is None:
            raise UserError("there is no process group; call torch.distributed.init_process_group")
        return group

    @property
    def over_nccl(self) -> bool:
        """Whether the group sums what is on a GPU by NCCL. To ask for that takes long, so once."""
        group = self.group
        if self._over_nccl is None or self._over_nccl[0] is not group:
            self._over_nccl = group, "cuda:nccl" in dist.get_backend_config(group)
        return self._over_nccl[1]

    def side_stream(self, device: torch.device) -> torch.cuda.Stream:
        """The same in every step, so that memory is used again."""
        if self._side is None:
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._side

    def beside(self, device: torch.device) -> AbstractContextManager[object]:
        """On the stream of the hook, after all that has been queued until now."""
        if device.type != "cuda":
            return nullcontext()
        side = self.side_stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        return torch.cuda.stream(side)

    def thread(self) -> ThreadPoolExecutor:
        """One, so that buckets are read in the order in which they were sent."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "fetchsgd-ddp")
        return self._thread

    def names_of(self, parameters: Sequence[Tensor]) -> list[str]:
        """Of a bucket's parameters."""
        try:
            return [self.names[parameter] for parameter in parameters]
        except KeyError:
            raise UserError(
                "a bucket has a parameter that is not of the model which SketchState was made "
                "with; make a state of its own for each model, after its parameters are there"
            ) from None

    def seen(self, bucket: dist.GradBucket) -> Seen:  # type: ignore[name-defined]
        """What is known of it from the steps before, or from now on."""
        index, buffer = bucket.index(), bucket.buffer()
        known = self._seen.get(index)
        if known is not None and known.buffer() is buffer:
            known.stays = True
            return known
        for other in [other for other in self._seen if other >= index]:
            del self._seen[other]  # which DDP has given up, and would be kept in memory
        known = self._seen[index] = Seen(weakref.ref(buffer), self.layout(bucket))
        return known

    def layout(self, bucket: dist.GradBucket) -> Layout:  # type: ignore[name-defined]
        """Where its tensors are in it; DDP may put others into a bucket of the same place."""
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key not in self._layouts:
            names = self.names_of(parameters)
            pieces = pieces_of(bucket.buffer(), bucket.gradients(), names)
            pieces.sort(key=lambda piece: self.places[piece.name])
            is_wide = [self.is_wide(piece.shape) for piece in pieces]
            self._layouts[key] = Layout.of(pieces, is_wide)
        return self._layouts[key]

    def check_agreement(self, device: torch.device) -> None:
        """Once in each process group: ranks that differ would train apart without an error."""
        group = self.group
        if self._agreed_in is group:
            return
        own = torch.tensor([int.from_bytes(self.digest().digest()[:7])], device=device)
        all_ranks = [torch.zeros_like(own) for _ in range(group.size())]
        dist.all_gather(all_ranks, own, group=group)
        others = [rank for rank, digest in enumerate(all_ranks) if not digest.equal(all_ranks[0])]
        if others:
            kind = type(self).__name__
            raise UserError(
                f"{kind} differs between rank 0 and rank {others[0]} in its {SHARED}; make it with "
                "the same options everywhere, and load one rank's state_dict on all of them"
            )
        self._agreed_in = group

    def digest(self) -> Any:
        """A hash of what all ranks must have in common."""
        shapes = [(name, list(parameter.shape)) for parameter, name in self.names.items()]
        return hashlib.sha256(json.dumps(shapes).encode())
