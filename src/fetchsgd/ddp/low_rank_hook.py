"""low_rank_hook: gradients as matrices of low rank (low_rank.py), for links that are slow.

    model = DistributedDataParallel(model)
    state = LowRankState(model, rank=16, cells="int4")
    model.register_comm_hook(state, low_rank_hook)

A bucket takes two sums, and the second needs the first. A thread does both, bucket after bucket, in
a process group of the hook's own: so their order is the same on all ranks, whatever else is sent.
"""

# Annotations are not texts here: DDP compares those of a hook with its own.
import json
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fetchsgd.ddp.base import HookState
from fetchsgd.ddp.keys import draw
from fetchsgd.ddp.layout import Layout
from fetchsgd.ddp.low_rank import LowRankBucket, is_worth_it
from fetchsgd.ddp.reducing import check_dtype, in_a_thread, plain_mean
from fetchsgd.ddp.settings import BITS, check_number
from fetchsgd.errors import UserError

LEVELS = ("int16", "int8", "int4")


class LowRankState(HookState):
    """The state of `low_rank_hook`. Make it on all ranks: it makes a process group.

    model: the model that is trained, wrapped or not, to know parameters by their names.
    rank: columns of each factor. Tensors whose factors have more than half as many numbers as they
        have themselves are never compressed, nor are vectors.
    cells: in what numbers of factors are summed, as for SketchState.
    start_iter: steps before the first that is compressed; buckets are rebuilt after the first.
    process_group: None is that of a model which is wrapped already, or else the default group.

    Each rank keeps what has not been said of its own gradients. There is no checkpoint of it: a
    run that resumes starts with factors at random and with nothing kept.
    """

    def __init__(
        self,
        model: nn.Module,
        rank: int = 4,
        *,
        cells: Literal["int16", "int8", "int4"] = "int8",
        start_iter: int = 2,
        seed: int = 0,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        check_number("rank", rank, 1, 4096)
        check_number("start_iter", start_iter, 0, 2**40)
        check_number("seed", seed, 0, 2**63 - 1)
        if cells not in LEVELS:
            raise UserError(f"cells must be one of {', '.join(LEVELS)}, got {cells!r}")
        super().__init__(model, process_group)
        self.rank, self.cells, self.start_iter, self.seed = rank, cells, start_iter, seed
        ranks = dist.get_process_group_ranks(self.group)
        self.own_group = dist.new_group(ranks, use_local_synchronization=True)
        self._buckets: dict[tuple[int, Layout], LowRankBucket] = {}

    def is_wide(self, shape: torch.Size) -> bool:
        return is_worth_it(shape, self.rank)

    def digest(self) -> Any:
        hash = super().digest()
        settings = [self.rank, self.cells, self.start_iter, self.seed, self.step]
        hash.update(json.dumps(settings).encode())
        return hash

    def bucket(self, layout: Layout, index: int, device: torch.device) -> LowRankBucket:
        """What is kept of it from step to step."""
        key = index, layout
        if key not in self._buckets:
            for other in [other for other in self._buckets if other[0] == index]:
                del self._buckets[other]  # of buckets that are no more
            place = self.group.rank(), self.group.size()
            self._buckets[key] = LowRankBucket(
                layout, self.rank, BITS[self.cells], *place, device, self.seed
            )
        return self._buckets[key]

    def summed(self, messages: list[Tensor]) -> list[Tensor]:
        """All ranks' together."""
        self.sent_bytes += sum(message.nbytes for message in messages)
        works = [dist.all_reduce(each, group=self.own_group, async_op=True) for each in messages]
        for work in works:
            work.wait()
        return messages


def low_rank_hook(
    state: LowRankState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The hook: `model.register_comm_hook(LowRankState(model), low_rank_hook)`."""
    buffer, index = bucket.buffer(), bucket.index()
    check_dtype(buffer)
    state.check_agreement(buffer.device)
    step = state.step
    if bucket.is_last():
        state.step += 1
    layout = state.seen(bucket).layout
    if step < state.start_iter or not layout.compressed:
        return plain_mean(state, buffer)
    kept = state.bucket(layout, index, buffer.device)
    key = draw(state.seed, step, index)

    def exchange() -> Tensor:
        left = state.summed(kept.first(buffer, key.hash_seed >> 1))
        right = state.summed(kept.second(left, key.rounding))
        return kept.finish(right)

    return in_a_thread(state, buffer.device, [], exchange)
