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
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from fetchsgd.ddp.balance import mean_squares, next_size, scales
from fetchsgd.ddp.levels import Levels
from fetchsgd.ddp.settings import BUCKETS
from fetchsgd.ddp.state import SketchState
from fetchsgd.errors import UserError
from fetchsgd.methods.base import State
from fetchsgd.methods.delivery import IDENTITY
from fetchsgd.randomness import number
from fetchsgd.sketch import CountSketch
from fetchsgd.sketch.checks import FLOATS

Gradient = torch.futures.Future[Tensor]
# Beside the tensors that are never compressed travel two numbers about a rank's own table: the
# share of cells that were cut off, and the mean square of a cell. And, to balance tensors, the mean
# square of each one's gradient.
ABOUT = 2


def sketch_hook(
    state: SketchState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The hook: `model.register_comm_hook(SketchState(model), sketch_hook)`."""
    buffer = bucket.buffer()
    if buffer.dtype not in FLOATS:
        raise UserError(
            f"gradients must be float32, bfloat16 or float16 to be compressed, got {buffer.dtype}; "
            "leave the hook out, or train in one of these"
        )
    state.check_agreement(buffer.device)
    step = state.step
    if bucket.is_last():
        state.step += 1
    parameters = bucket.parameters()
    names = state.names_of(parameters)
    wide = [state.is_compressed(parameter) for parameter in parameters]
    if step < state.settings.start_iter or not any(wide):
        return plain_mean(state, buffer)
    gradients = bucket.gradients()

    def exchange() -> Exchange:
        return Exchange.of(state, bucket.index(), step, buffer, gradients, names, wide)

    is_queued = buffer.is_cuda and dist.get_backend(state.group) == "nccl"
    if is_queued:
        return beside_backward(state, buffer.device, exchange)
    return when_here(exchange())


def beside_backward(
    state: SketchState, device: torch.device, make: Callable[[], "Exchange"]
) -> Gradient:
    """On a stream of the hook's own, all of it queued at once; the host waits for nothing.

    Callbacks of NCCL's futures would do too, but each has another stream, and memory that one
    stream has given back is of no use to the next: they would ask the driver for more of it.
    """
    side = state.side_stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        exchange = make()
        for work in exchange.send():
            work.wait()
        future: Gradient = torch.futures.Future(devices=[device])
        future.set_result(exchange.finish())
    return future


def when_here(exchange: "Exchange") -> Gradient:
    """In a callback, while the backward pass goes on."""
    works = exchange.send()

    def finish(_: object) -> Tensor:
        for earlier in works[:-1]:  # begun before this one, and so on its way by now
            earlier.wait()
        for tensor in (*exchange.messages, exchange.scales):
            if tensor is not None and tensor.is_cuda:  # the callback has a stream of its own
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return exchange.finish()

    future: Gradient = works[-1].get_future().then(finish)
    return future


def plain_mean(state: SketchState, buffer: Tensor) -> Gradient:
    """As DDP without a hook."""
    group = state.group
    state.sent_bytes += buffer.nbytes
    work = dist.all_reduce(buffer.div_(group.size()), group=group, async_op=True)
    future: Gradient = work.get_future().then(lambda _: buffer)
    return future


@dataclass(eq=False)
class Exchange:
    """One bucket in one step: `send`, and `finish` when the sums of all ranks are there."""

    state: SketchState
    sketch: CountSketch
    kept: State
    buffer: Tensor
    compressed: list[Tensor]  # views of the buffer
    exact: list[Tensor]
    scales: Tensor | None  # of the tensors that are compressed
    levels: Levels | None
    key: int  # of random rounding
    messages: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        state: SketchState,
        index: int,
        step: int,
        buffer: Tensor,
        gradients: list[Tensor],
        names: list[str],
        wide: list[bool],
    ) -> "Exchange":
        settings = state.settings
        # In the model's order, which the buckets of the first step and of later ones have not.
        order = sorted(range(len(names)), key=lambda at: state.places[names[at]])
        chosen = [names[at] for at in order if wide[at]]
        compressed = [gradients[at] for at in order if wide[at]]
        exact = [gradients[at] for at in order if not wide[at]]
        sizes = [part.numel() for part in compressed]
        # A public step follows from the steps before, so a bucket's first table is in float32.
        has_step = settings.has_levels and state.memory.has_all(chosen)
        levels = Levels(settings.bits, state.group.size()) if settings.has_levels else None
        kept = state.memory.bucket(chosen, sizes, buffer.device)
        return cls(
            state,
            settings.sketch(sum(sizes), step, index),
            kept,
            buffer,
            compressed,
            exact,
            scales(kept["size"], settings.balance) if settings.balance else None,
            levels if has_step else None,
            number(settings.seed, "quantise", step * BUCKETS + index),
        )

    @property
    def sizes(self) -> list[int]:
        return [part.numel() for part in self.compressed]

    @property
    def step(self) -> Tensor:
        """Of the levels; 0 before there is one."""
        return self.kept["step"].amax()

    def balanced(self) -> Tensor:
        """What is sketched, in one piece, which takes far less time than many."""
        parts = [part.float() for part in self.compressed]
        if self.scales is not None:
            parts = list(torch._foreach_div(parts, list(self.scales.unbind())))
        return torch.cat([part.view(-1) for part in parts])

    def send(self) -> list[dist.Work]:
        """Begin to add up all ranks' tables, and what travels beside them."""
        group = self.state.group
        cells = self.sketch.sketch(self.balanced())[0].div_(group.size())
        about = torch.stack([torch.zeros_like(cells[0]), cells.square().mean()])
        if self.levels:
            cells, about[0] = self.levels.pack(cells, self.step, self.key, group.rank())
        elif self.state.settings.cells == "bfloat16":
            cells = cells.bfloat16()
        exact = [torch.cat([part.view(-1) for part in self.exact]).float()] if self.exact else []
        # Where cells are rounded, what travels beside them need not be finer than bfloat16.
        kind = torch.float32 if cells.dtype == torch.float32 else torch.bfloat16
        sizes = [mean_squares(self.compressed)] if self.scales is not None else []
        beside = torch.cat([*sizes, *exact, about]).div_(group.size())
        messages = [beside.to(kind), cells]
        if cells.dtype == kind:  # one message instead of two
            messages = [torch.cat(messages)]
        self.state.sent_bytes += sum(message.nbytes for message in messages)
        self.messages = messages
        return [dist.all_reduce(each, group=group, async_op=True) for each in messages]

    def finish(self) -> Tensor:
        """From the sums to what the optimiser sees."""
        sizes = [part.numel() for part in self.exact]
        tensors = 0 if self.scales is None else len(self.scales)
        lengths = [tensors, sum(sizes), ABOUT, self.sketch.cols]
        if len(self.messages) > 1:
            lengths[-1] = 0
        found, exact, about, cells = torch.split(self.messages[0].float(), lengths)
        if self.levels:
            cells = self.levels.unpack(self.messages[1], self.step, self.sketch.cols)
        is_finite = about.isfinite().all()
        update, learned = self.read(torch.where(is_finite, cells, torch.nan)[None])
        if self.state.settings.top_k:  # which says so for few weights alone
            update = torch.where(is_finite, update, torch.nan)
        if "step" in self.kept:
            levels = Levels(self.state.settings.bits, self.state.group.size())
            after = levels.next_step(self.step, about[0], about[1].sqrt())
            learned["step"] = after.expand_as(self.kept["step"])
        if self.scales is not None:
            learned["size"] = next_size(self.kept["size"], found)
        for name, before in self.kept.items():
            before.copy_(torch.where(is_finite, learned[name], before))
        targets = [*self.compressed, *self.exact]
        parts = [*torch.split(update, self.sizes), *torch.split(exact, sizes)]
        given = [part.view_as(target) for target, part in zip(targets, parts, strict=True)]
        torch._foreach_copy_(targets, given)
        return self.buffer

    def read(self, table: Tensor) -> tuple[Tensor, State]:
        """The table as a gradient, and what is kept afterwards."""
        settings = self.state.settings
        reading = settings.decoder.read(self.sketch, table, self.kept)
        estimate, learned = reading.estimate, dict(reading.learned)
        if self.scales is not None:
            parts = torch.split(estimate, self.sizes)
            torch._foreach_mul_(list(parts), list(self.scales.unbind()))
        # Without momentum there is none to keep: a single zero stands for it.
        momentum = self.kept.get("momentum", estimate.new_zeros(()))
        if settings.top_k:
            before = {"momentum": momentum, "error": self.kept["error"]}
            sent, after = settings.server(self.sketch.dim).send(
                estimate, before, 1.0, IDENTITY, self.state.step
            )
            return sent.sparse.to_dense(), learned | after
        if settings.momentum:
            estimate = learned["momentum"] = settings.momentum * momentum + estimate
        return estimate, learned
