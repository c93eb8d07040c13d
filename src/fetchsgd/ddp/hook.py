"""sketch_hook: from a bucket of gradients to their mean over all ranks, by way of a sketch.

Each bucket has a sketch of its own, with cells in proportion to its weights. So it can be sent
while the backward pass still computes the next bucket, as DDP does without a hook. One sketch of
the whole gradient could not start before the last bucket is there.

    a rank     table = S(its gradient) / ranks, with the hash of the step and the bucket
    all ranks  all-reduce of the table, and of what is never compressed
    each rank  reads the table: the same bits in, the same gradient out, the same memory kept

What is not finite anywhere comes out as NaN on all ranks and leaves the memory as it was, so that
loss scaling can skip the step.
"""

# Annotations are not texts here: DDP compares those of a hook with its own.
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from fetchsgd.ddp.balance import scales
from fetchsgd.ddp.exchange import Exchange
from fetchsgd.ddp.fused import FusedBucket, can_fuse
from fetchsgd.ddp.keys import draw
from fetchsgd.ddp.layout import Layout, of_pieces
from fetchsgd.ddp.levels import Levels
from fetchsgd.ddp.reducing import Gradient, check_dtype, in_a_thread, plain_mean
from fetchsgd.ddp.state import SketchState


def sketch_hook(
    state: SketchState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The hook: `model.register_comm_hook(SketchState(model), sketch_hook)`."""
    buffer = bucket.buffer()
    check_dtype(buffer)
    state.check_agreement(buffer.device)
    step = state.step
    if bucket.is_last():
        state.step += 1
    layout = state.layout(bucket)
    if step < state.settings.start_iter or not layout.compressed:
        return plain_mean(state, buffer)

    def exchange() -> Exchange | FusedBucket:
        place = state.group.rank(), state.group.size()
        return exchange_of(state, layout, bucket.index(), step, buffer, *place)

    if not buffer.is_cuda:
        return when_here(state, exchange())
    if dist.get_backend(state.group) == "nccl":
        return beside_backward(state, buffer.device, exchange)
    begun = exchange()
    return in_a_thread(state, buffer.device, send(state, begun), begun.finish)


def exchange_of(
    state: SketchState,
    layout: Layout,
    index: int,
    step: int,
    buffer: Tensor,
    rank: int,
    world: int,
) -> Exchange | FusedBucket:
    """One bucket in one step, in few programs where that can be."""
    settings, names = state.settings, layout.names
    # A public step follows from the steps before, so a bucket's first table is in float32.
    has_step = settings.has_levels and state.memory.has_all(names)
    kept = state.memory.bucket(names, layout.sizes, buffer.device)
    left = None
    if settings.feedback:
        left = state.errors.bucket(names, layout.sizes, buffer.device)["left"]
    if (has_step or not settings.has_levels) and can_fuse(settings, buffer.device):
        fused = state.fused(layout, index, buffer, rank, world)
        fused.begin(step, buffer, kept, left)
        return fused
    levels = Levels(settings.bits, world) if settings.has_levels else None
    return Exchange(
        settings,
        layout,
        rank,
        world,
        settings.sketch(layout.dim, step, index),
        kept,
        left,
        buffer,
        of_pieces(buffer, layout.compressed),
        of_pieces(buffer, layout.exact),
        scales(kept["size"], settings.balance) if settings.balance else None,
        levels if has_step else None,
        draw(settings.seed, step, index).rounding,
        step,
    )


def send(state: SketchState, exchange: Exchange | FusedBucket) -> list[dist.Work]:
    """Begin to add up what all ranks have to say."""
    exchange.fill()
    group = state.group
    state.sent_bytes += sum(message.nbytes for message in exchange.messages)
    return [dist.all_reduce(each, group=group, async_op=True) for each in exchange.messages]


def beside_backward(
    state: SketchState, device: torch.device, make: Callable[[], Exchange | FusedBucket]
) -> Gradient:
    """On a stream of the hook's own, all of it queued at once; the host waits for nothing.

    Callbacks of NCCL's futures would do too, but each has another stream, and memory that one
    stream has given back is of no use to the next: they would ask the driver for more of it.
    """
    with state.beside(device):
        exchange = make()
        for work in send(state, exchange):
            work.wait()
        future: Gradient = torch.futures.Future(devices=[device])
        future.set_result(exchange.finish())
    return future


def when_here(state: SketchState, exchange: Exchange | FusedBucket) -> Gradient:
    """In a callback, while the backward pass goes on."""
    works = send(state, exchange)

    def finish(_: object) -> Tensor:
        for earlier in works[:-1]:  # begun before this one, and so on its way by now
            earlier.wait()
        return exchange.finish()

    future: Gradient = works[-1].get_future().then(finish)
    return future
