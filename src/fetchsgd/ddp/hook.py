"""sketch_hook: from a bucket of gradients to their mean over all ranks, by way of a sketch.

Each bucket has a sketch of its own, with cells in proportion to its weights. So it can be sent
while the backward pass still computes the next bucket, as DDP does without a hook. One sketch of
the whole gradient could not start before the last bucket is there. On a GPU, where starting takes
longer than computing, some buckets share one (grouping.py).

    a rank     table = S(its gradient) / ranks, with the hash of the step and the bucket
    all ranks  all-reduce of the table, and of what is never compressed
    each rank  reads the table: the same bits in, the same gradient out, the same memory kept

What is not finite anywhere comes out as NaN on all ranks and leaves the memory as it was, so that
loss scaling can skip the step.
"""

# Annotations are not texts here: DDP compares those of a hook with its own.
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from fetchsgd.ddp.balance import scales
from fetchsgd.ddp.base import Seen
from fetchsgd.ddp.exchange import Exchange
from fetchsgd.ddp.fused import FusedBucket, can_fuse
from fetchsgd.ddp.grouping import Buffers, Group
from fetchsgd.ddp.keys import draw
from fetchsgd.ddp.layout import Layout, of_buckets
from fetchsgd.ddp.levels import Levels
from fetchsgd.ddp.reducing import Gradient, check_dtype, in_a_thread, on, plain_mean
from fetchsgd.ddp.state import SketchState


def sketch_hook(
    state: SketchState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The hook: `model.register_comm_hook(SketchState(model), sketch_hook)`."""
    buffer, index, is_last = bucket.buffer(), bucket.index(), bucket.is_last()
    check_dtype(buffer)
    state.check_agreement(buffer.device)
    step = state.step
    if index == 0:
        state.waiting = None  # of a backward pass that failed
    if is_last:
        state.step += 1
    seen = state.seen(bucket)
    if step < state.settings.start_iter or not seen.layout.compressed:
        future = plain_mean(state, buffer)
    else:
        future = gather(state, seen, index, step, buffer)
    if is_last:
        exchange_waiting(state, step)
        if buffer.is_cuda and state.over_nccl:
            # The rest of the step is queued behind what the hook has queued.
            side = state.side_stream(buffer.device)
            torch.cuda.current_stream(buffer.device).wait_stream(side)
    return future


def gather(state: SketchState, seen: Seen, index: int, step: int, buffer: Tensor) -> Gradient:
    """A bucket, together with those before it that wait."""
    if state.waiting and not state.waiting.takes(buffer):
        exchange_waiting(state, step)
    if not state.waiting:
        done: torch.futures.Future[Buffers] | None = None
        if not (buffer.is_cuda and state.over_nccl):
            done = torch.futures.Future(devices=on(buffer.device))
        most = state.settings.group_bytes(buffer.device)
        state.waiting = Group(index, buffer, most, done)
    future = state.waiting.add(seen, buffer)
    if state.waiting.is_full:
        exchange_waiting(state, step)
    return future


def exchange_waiting(state: SketchState, step: int) -> None:
    """Begin with all buckets that wait."""
    group, state.waiting = state.waiting, None
    if not group:
        return
    layout, device = state.together(group.layouts), group.device
    group.wait_for_streams()

    def exchange() -> Exchange | FusedBucket:
        place = state.group.rank(), state.group.size()
        return exchange_of(state, layout, group.index, step, group.buffers, *place)

    if device.type != "cuda":
        when_here(state, exchange(), group)
    elif state.over_nccl:
        beside_backward(state, exchange, group)
    else:
        begun = exchange()

        def finish() -> Buffers:
            begun.finish()
            return group.buffers

        in_a_thread(state, device, send(state, begun), finish, group.done)


def exchange_of(
    state: SketchState,
    layout: Layout,
    index: int,
    step: int,
    buffers: Sequence[Tensor],
    rank: int,
    world: int,
) -> Exchange | FusedBucket:
    """Some buckets in one step, in few programs where that can be."""
    settings, names, device = state.settings, layout.names, buffers[0].device
    # A public step follows from the steps before, so a bucket's first table is in float32.
    has_step = settings.has_levels and state.memory.has_all(names)
    kept = state.memory.bucket(names, layout.sizes, device)
    left = None
    if settings.feedback:
        left = state.errors.bucket(names, layout.sizes, device)["left"]
    if (has_step or not settings.has_levels) and can_fuse(settings, device):
        fused = state.fused(layout, index, device, rank, world)
        fused.begin(step, buffers, kept, left)
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
        of_buckets(buffers, layout.compressed),
        of_buckets(buffers, layout.exact),
        scales(kept["size"], settings.balance) if settings.balance else None,
        levels if has_step else None,
        draw(settings.seed, step, index).rounding,
        step,
    )


def filled(state: SketchState, exchange: Exchange | FusedBucket) -> list[Tensor]:
    """What this rank hands to all-reduce."""
    exchange.fill()
    state.sent_bytes += sum(message.nbytes for message in exchange.messages)
    return exchange.messages


def send(state: SketchState, exchange: Exchange | FusedBucket) -> list[dist.Work]:
    """Begin to add up what all ranks have to say."""
    group = state.group
    messages = filled(state, exchange)
    return [dist.all_reduce(each, group=group, async_op=True) for each in messages]


def beside_backward(
    state: SketchState, make: Callable[[], Exchange | FusedBucket], group: Group
) -> None:
    """On a stream of the hook's own, all of it queued at once; the host waits for nothing.

    Callbacks of NCCL's futures would do too, but each has another stream, and memory that one
    stream has given back is of no use to the next: they would ask the driver for more of it.
    """
    with state.beside(group.device):
        exchange = make()
        for message in filled(state, exchange):
            dist.all_reduce(message, group=state.group)  # the stream waits, not the host
        exchange.finish()
        group.set_result()


def when_here(state: SketchState, exchange: Exchange | FusedBucket, group: Group) -> None:
    """In a callback, while the backward pass goes on."""
    works = send(state, exchange)

    def finish(last: torch.futures.Future[object]) -> None:
        try:
            last.value()  # which raises what went wrong
            for earlier in works[:-1]:  # begun before this one, and so on its way by now
                earlier.wait()
            exchange.finish()
        except Exception as error:
            group.set_exception(error)
        else:
            group.set_result()

    works[-1].get_future().add_done_callback(finish)
