"""A link of limited speed where the kernel has none to give: collectives that end when they would.

Ranks are real processes that exchange over this machine. What a collective would have sent over the
rank's link is counted, and its end is put off until a link of that speed would have carried it,
one collective after the other. So steps have their real length, with what is hidden behind the
backward pass and what is not; the link alone is modelled.

A ring of n ranks sends 2 (n - 1) / n times the message for a sum, and n - 1 times for a gathering.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Link:
    """rate: bits a second, 0 for no limit. sent: bytes so far."""

    def __init__(self) -> None:
        self.rate, self.sent, self.free_at = 0.0, 0.0, 0.0
        self.waiting: queue.Queue[Callable[[], None]] = queue.Queue()
        threading.Thread(target=self._carry, daemon=True).start()

    def _carry(self) -> None:
        while True:
            self.waiting.get()()

    def until_carried(self, begun: float, sent: float) -> None:
        self.sent += sent
        if self.rate:
            self.free_at = max(self.free_at, begun) + 8 * sent / self.rate
            time.sleep(max(self.free_at - time.perf_counter(), 0.0))


class PacedWork:
    """What `dist.all_reduce(..., async_op=True)` gives, with a later end."""

    def __init__(self, link: Link, work: dist.Work, tensors: Sequence[Tensor], sent: float) -> None:
        devices = [t.device for t in tensors[:1] if t.is_cuda]
        self.future: torch.futures.Future[list[Tensor]] = torch.futures.Future(devices=devices)
        begun = time.perf_counter()

        def carry() -> None:
            work.wait()
            if devices:  # where the sums are on their way back from the host
                torch.cuda.current_stream(devices[0]).synchronize()
            link.until_carried(begun, sent)
            # What follows may wait for further collectives, which this thread has to carry.
            threading.Thread(target=self.future.set_result, args=(list(tensors),)).start()

        link.waiting.put(carry)

    def wait(self) -> bool:
        self.future.wait()
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        return self.future


def pace() -> Link:
    """From now on, sums and gatherings of this process pass over the link that is returned."""
    link = Link()
    world = dist.get_world_size()
    reduce, gather = dist.all_reduce, dist.all_gather

    def all_reduce(tensor: Tensor, *args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        work = reduce(tensor, *args, async_op=True, **kwargs)
        paced = PacedWork(link, work, [tensor], tensor.nbytes * 2 * (world - 1) / world)
        return paced if async_op else paced.wait()

    def all_gather(
        tensors: list[Tensor], tensor: Tensor, *args: Any, async_op: bool = False, **kwargs: Any
    ) -> Any:
        work = gather(tensors, tensor, *args, async_op=True, **kwargs)
        paced = PacedWork(link, work, tensors, tensor.nbytes * (world - 1))
        return paced if async_op else paced.wait()

    dist.all_reduce, dist.all_gather = all_reduce, all_gather
    return link
