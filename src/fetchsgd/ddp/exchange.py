"""Some buckets in one step, on any device and with any options: what ranks say, and what they read.

fused.py does the same in few programs on a GPU, for the usual options.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fetchsgd.ddp.balance import mean_squares, next_size
from fetchsgd.ddp.layout import Layout
from fetchsgd.ddp.levels import Levels
from fetchsgd.ddp.settings import Settings
from fetchsgd.methods.base import State
from fetchsgd.methods.delivery import IDENTITY
from fetchsgd.sketch import CountSketch

# Beside the tensors that are never compressed travel two numbers about a rank's own table: the
# share of cells that were cut off, and the mean square of a cell. And, to balance tensors, the mean
# square of each one's gradient.
ABOUT = 2


@dataclass(eq=False)
class Exchange:
    """`fill`, and `finish` when the sums of all ranks are there."""

    settings: Settings
    layout: Layout
    rank: int
    world: int
    sketch: CountSketch
    kept: State
    left: Tensor | None  # what the rank could not say in the steps before
    compressed: list[Tensor]  # flat views of the buckets
    exact: list[Tensor]
    scales: Tensor | None  # of the tensors that are compressed
    levels: Levels | None
    key: int  # of random rounding
    number: int  # of the step
    messages: list[Tensor] = field(default_factory=list)
    mean_squares: Tensor = field(init=False)
    remaining: Tensor = field(init=False)

    @property
    def step(self) -> Tensor:
        """Of the levels; 0 before there is one."""
        return self.kept["step"].amax()

    def prepare(self) -> Tensor:
        """What is sketched, in one piece, which takes far less time than many."""
        whole = torch.cat([part.float() for part in self.compressed])
        if self.left is not None:
            whole += self.left
        parts = torch.split(whole, self.layout.sizes)
        self.mean_squares = mean_squares(parts)
        if self.scales is not None:
            torch._foreach_div_(list(parts), list(self.scales.unbind()))
        return whole

    def fill(self) -> None:
        """The messages of this rank, its table and what travels beside it, to be added up."""
        whole = self.prepare()
        cells = self.sketch.sketch(whole)[0].div_(self.world)
        about = torch.stack([torch.zeros_like(cells[0]), cells.square().mean()])
        if self.levels:
            cells, about[0] = self.levels.pack(cells, self.step, self.key, self.rank)
        elif self.settings.cells == "bfloat16":
            cells = cells.bfloat16()
        if self.left is not None:
            self.remaining = self.unsaid(whole, cells)
        exact = [torch.cat(self.exact).float()] if self.exact else []
        # Where cells are rounded, what travels beside them need not be finer than bfloat16.
        kind = torch.float32 if cells.dtype == torch.float32 else torch.bfloat16
        sizes = [self.mean_squares] if self.scales is not None else []
        beside = torch.cat([*sizes, *exact, about]).div_(self.world)
        messages = [beside.to(kind), cells]
        if cells.dtype == kind:  # one message instead of two
            messages = [torch.cat(messages)]
        self.messages = messages

    def unsaid(self, whole: Tensor, cells: Tensor) -> Tensor:
        """Of what was sketched, the share that waits of what the rank's own table does not say."""
        cols, world = self.sketch.cols, self.world
        own = self.levels.unpack(cells, self.step, cols, 1) if self.levels else cells.float()
        said = self.sketch.estimate(own[None]).mul_(world * cols / self.sketch.dim)
        left = (whole - said).mul_(self.settings.feedback)
        if self.scales is not None:
            parts = torch.split(left, self.layout.sizes)
            torch._foreach_mul_(list(parts), list(self.scales.unbind()))
        return left

    def finish(self) -> None:
        """From the sums to what the optimiser sees, in the buckets themselves."""
        self._record_stream()
        sizes = self.layout.exact_sizes
        tensors = 0 if self.scales is None else len(self.scales)
        lengths = [tensors, sum(sizes), ABOUT, self.sketch.cols]
        if len(self.messages) > 1:
            lengths[-1] = 0
        found, exact, about, cells = torch.split(self.messages[0].float(), lengths)
        if self.levels:
            cells = self.levels.unpack(self.messages[1], self.step, self.sketch.cols)
        is_finite = about.isfinite().all()
        update, learned = self.read(torch.where(is_finite, cells, torch.nan)[None])
        if self.settings.top_k:  # which says so for few weights alone
            update = torch.where(is_finite, update, torch.nan)
        if "step" in self.kept:
            levels = Levels(self.settings.bits, self.world)
            after = levels.next_step(self.step, about[0], about[1].sqrt())
            learned["step"] = after.expand_as(self.kept["step"])
        if self.scales is not None:
            learned["size"] = next_size(self.kept["size"], found)
        for name, before in self.kept.items():
            before.copy_(torch.where(is_finite, learned[name], before))
        if self.left is not None:
            self.left.copy_(torch.where(is_finite, self.remaining, self.left))
        targets = [*self.compressed, *self.exact]
        parts = [*torch.split(update, self.layout.sizes), *torch.split(exact, sizes)]
        torch._foreach_copy_(targets, parts)

    def _record_stream(self) -> None:
        """What another stream has made is needed until the current one has read it."""
        for tensor in (*self.messages, self.scales, self.__dict__.get("remaining")):
            if tensor is not None and tensor.is_cuda:
                tensor.record_stream(torch.cuda.current_stream(tensor.device))

    def read(self, table: Tensor) -> tuple[Tensor, State]:
        """The table as a gradient, and what is kept afterwards."""
        settings = self.settings
        learned: State = {}
        if settings.prior:
            reading = settings.prior.read(self.sketch, table, self.kept)
            estimate, learned = reading.estimate, dict(reading.learned)
        else:
            gain = settings.gain(self.sketch.dim, self.sketch.cols)
            estimate = self.sketch.estimate(table).mul_(gain)
        if self.scales is not None:
            parts = torch.split(estimate, self.layout.sizes)
            torch._foreach_mul_(list(parts), list(self.scales.unbind()))
        # Without momentum there is none to keep: a single zero stands for it.
        momentum = self.kept.get("momentum", estimate.new_zeros(()))
        if settings.top_k:
            before = {"momentum": momentum, "error": self.kept["error"]}
            sent, after = settings.server(self.sketch.dim).send(
                estimate, before, 1.0, IDENTITY, self.number
            )
            return sent.sparse.to_dense(), learned | after
        if settings.momentum:
            estimate = learned["momentum"] = settings.momentum * momentum + estimate
        return estimate, learned
