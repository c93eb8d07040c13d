"""What all hooks do with a bucket: refuse it, reduce it as DDP would, or wait for it elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fetchsgd.ddp.base import HookState
from fetchsgd.errors import UserError
from fetchsgd.sketch.checks import FLOATS

Gradient = torch.futures.Future[Tensor]


def check_dtype(buffer: Tensor) -> None:
    if buffer.dtype not in FLOATS:
        raise UserError(
            f"gradients must be float32, bfloat16 or float16 to be compressed, got {buffer.dtype}; "
            "leave the hook out, or train in one of these"
        )


def on(device: torch.device) -> list[int | str | torch.device] | None:
    """The devices of a future whose result is on this one."""
    return [device] if device.type == "cuda" else None


def in_a_thread(
    state: HookState,
    device: torch.device,
    works: list[dist.Work],
    finish: Callable[[], object],
    future: torch.futures.Future[Any] | None = None,
) -> torch.futures.Future[Any]:
    """What follows when some sums are there, while the backward pass goes on.

    future: which gets the result, else a new one.

    For gloo on a GPU, too: in a callback of its future, what it has summed on the host may still be
    on its way to the GPU, and to wait for that would be to wait for the callback.
    """
    future = torch.futures.Future(devices=on(device)) if future is None else future
    here = state.beside(device)

    def wait() -> None:
        try:
            with here:
                for work in works:
                    work.wait()
                future.set_result(finish())
        except Exception as error:
            future.set_exception(error)

    state.thread().submit(wait)
    return future


def plain_mean(state: HookState, buffer: Tensor) -> Gradient:
    """As DDP without a hook."""
    group = state.group
    state.sent_bytes += buffer.nbytes
    work = dist.all_reduce(buffer.div_(group.size()), group=group, async_op=True)
    if buffer.is_cuda and not state.over_nccl:
        return in_a_thread(state, buffer.device, [work], lambda: buffer)
    future: Gradient = work.get_future().then(lambda _: buffer)
    return future
