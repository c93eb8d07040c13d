"""What the ways of ddp_rivals.py make of the gradients of all workers, in one process.

Each takes a step's gradients, (workers, size) for every tensor, and gives their mean as the workers
would have it. `sent` is the bytes that a worker hands to all-reduce in a step.

PowerSGD is linear in the gradients and in the errors that workers keep, so the mean of both says
all that there is to say. Top-k and levels are not: these work on each worker's numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import torch
from rivals import KINDS, START
from torch import Tensor

from fetchsgd.ddp.balance import mean_squares, next_size, scales
from fetchsgd.ddp.levels import Levels
from fetchsgd.ddp.settings import Settings

Gradients = Sequence[Tensor]  # (workers, size) of each tensor
SMALL = 1e-8


class Way(Protocol):
    sent: float
    is_linear: bool  # so that the mean of the gradients is all it needs

    def mean(self, gradients: Gradients, step: int) -> list[Tensor]:
        """What every worker's optimiser sees, flat."""
        ...


class Plain:
    def __init__(self, shapes: Sequence[torch.Size], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.is_linear = dtype == torch.float32
        self.sent = float(dtype.itemsize * sum(shape.numel() for shape in shapes))

    def mean(self, gradients: Gradients, step: int) -> list[Tensor]:  # noqa: ARG002
        if self.dtype == torch.float32:
            return [each.mean(0) for each in gradients]
        summed = [(each / len(each)).to(self.dtype).sum(0, dtype=self.dtype) for each in gradients]
        return [each.float() for each in summed]


def orthogonal(columns: Tensor) -> Tensor:
    """Gram and Schmidt, as torch's hook does it; (n, rows, rank)."""
    columns = columns.clone()
    for at in range(columns.shape[2]):
        one = columns[:, :, at : at + 1]
        one /= one.norm(dim=1, keepdim=True) + SMALL
        rest = columns[:, :, at + 1 :]
        rest -= one * (one * rest).sum(1, keepdim=True)
    return columns


class Power:
    """Tensors of one shape are worked on together."""

    is_linear = True

    def __init__(self, shapes: Sequence[torch.Size], rank: int, device: str, seed: int) -> None:
        dice = torch.Generator().manual_seed(seed)
        found = defaultdict(list)
        self.sent = 0.0
        self.exact = []
        for at, shape in enumerate(shapes):
            rows, cols = shape[0], shape.numel() // shape[0]
            if len(shape) > 1 and 2 * rank * (rows + cols) < rows * cols:
                found[rows, cols].append(at)
                self.sent += 4 * rank * (rows + cols)
            else:
                self.exact.append(at)
                self.sent += 4 * rows * cols
        self.groups = dict(found)
        self.right = {
            key: orthogonal(torch.randn(len(group), key[1], rank, generator=dice)).to(device)
            for key, group in found.items()
        }
        self.errors: dict[tuple[int, int], Tensor] = {}

    def mean(self, gradients: Gradients, step: int) -> list[Tensor]:
        means = [each.mean(0) for each in gradients]
        if step < START:
            return means
        for key, group in self.groups.items():
            matrices = torch.stack([means[at] for at in group]).view(-1, *key)
            if key in self.errors:
                matrices += self.errors[key]
            left = orthogonal(matrices @ self.right[key])
            self.right[key] = matrices.mT @ left
            given = left @ self.right[key].mT
            self.errors[key] = matrices - given
            for at, one in zip(group, given, strict=True):
                means[at] = one.flatten()
            self.right[key] = orthogonal(self.right[key])
        return means


class TopK:
    """Of all tensors together, as in a single bucket."""

    is_linear = False

    def __init__(self, shapes: Sequence[torch.Size], share: float, workers: int) -> None:
        self.sizes = [shape.numel() for shape in shapes]
        self.k = max(math.ceil(share * sum(self.sizes)), 1)
        # Gathered, not reduced: a worker sends its own to all others, where a ring that reduces
        # sends everything 2 (n - 1) / n times.
        self.sent = 8 * self.k * workers / 2
        self.errors: Tensor | None = None

    def mean(self, gradients: Gradients, step: int) -> list[Tensor]:
        total = torch.cat([*gradients], dim=1)
        if step < START:
            return list(total.mean(0).split(self.sizes))
        if self.errors is not None:
            total += self.errors
        places = total.abs().topk(self.k, dim=1, sorted=False).indices
        sent = torch.zeros_like(total).scatter_(1, places, total.gather(1, places))
        self.errors = total - sent
        return list(sent.mean(0).split(self.sizes))


class Sketch:
    """The hook's own parts, on one bucket."""

    is_linear = False

    def __init__(
        self, shapes: Sequence[torch.Size], settings: Settings, workers: int, device: str
    ) -> None:
        self.settings, self.workers = settings, workers
        self.wide = [settings.is_compressed(shape) for shape in shapes]
        self.sizes = [shape.numel() for shape, wide in zip(shapes, self.wide, strict=True) if wide]
        dim = sum(self.sizes)
        self.kept = {
            field: torch.zeros(dim, device=device)
            for field, is_per_weight in settings.fields.items()
            if is_per_weight
        }
        self.size = torch.zeros(len(self.sizes), device=device)
        self.counts = torch.tensor(self.sizes, device=device)
        table = settings.sketch(dim, 0, 0).cols * settings.bits / 8
        exact = sum(shape.numel() for shape in shapes) - dim
        self.sent = table + (4 if settings.cells == "float32" else 2) * exact
        self.step = torch.zeros((), device=device)
        self.errors = None

    def mean(self, gradients: Gradients, step: int) -> list[Tensor]:
        chosen = [each for each, wide in zip(gradients, self.wide, strict=True) if wide]
        cells = self.settings.sketch(sum(self.sizes), step, 0)
        own = torch.cat(chosen, dim=1)
        if self.settings.feedback:
            if self.errors is None:
                self.errors = torch.zeros_like(own)
            own += self.errors
            chosen = own.split(self.sizes, dim=1)
        scale = self._scale(chosen)
        if scale is not None:
            own /= scale
        tables = cells.sketch(own, batched=True)[:, 0] / self.workers
        size = tables.square().mean(1).mean().sqrt()
        if not self.settings.has_levels:
            total = tables.sum(0)
        else:
            total = self._levels(tables, step, size)
        if self.settings.feedback:
            gain, beta = cells.cols / cells.dim, self.settings.feedback
            self.errors = beta * own - beta * gain * self.workers * torch.stack([cells.estimate(t[None]) for t in (self.rounded if step and self.settings.has_levels else tables)])
            estimate = (1 - beta * (1 - gain)) * cells.estimate(total[None])
            if scale is not None:
                self.errors *= scale
                estimate = estimate * scale
            parts = iter(estimate.split(self.sizes))
            return [next(parts) if wide else each.mean(0) for each, wide in zip(gradients, self.wide, strict=True)]
        reading = self.settings.decoder.read(cells, total[None], self.kept)
        self.kept |= reading.learned
        estimate = reading.estimate if scale is None else reading.estimate * scale
        parts = iter(estimate.split(self.sizes))
        return [
            next(parts) if wide else each.mean(0)
            for each, wide in zip(gradients, self.wide, strict=True)
        ]

    def _scale(self, chosen: Gradients) -> Tensor | None:
        if not self.settings.balance:
            return None
        before = self.size
        workers = [mean_squares(list(parts)) for parts in zip(*chosen, strict=True)]
        self.size = next_size(before, torch.stack(workers).mean(0))
        each = scales(before, self.settings.balance)
        return each.repeat_interleave(self.counts, output_size=sum(self.sizes))

    def _levels(self, tables: Tensor, step: int, size: Tensor) -> Tensor:
        levels = Levels(self.settings.bits, self.workers)
        if step == 0:  # in float32
            clipped, total = torch.zeros_like(size), tables.sum(0)
        else:
            packed = [levels.pack(one, self.step, step, at) for at, one in enumerate(tables)]
            clipped = torch.stack([share for _, share in packed]).mean()
            sums = torch.stack([one for one, _ in packed]).sum(0, dtype=packed[0][0].dtype)
            total = levels.unpack(sums, self.step, tables.shape[1])
            self.rounded = [(levels._split(one)[:tables.shape[1]] - levels.most).float() * self.step for one, _ in packed]
        self.step = levels.next_step(self.step, clipped, size)
        return total


def way(method: str, shapes: Sequence[torch.Size], workers: int, device: str, seed: int) -> Way:
    """From a text, as in ddp_rivals.py."""
    kind, *options = method.split(":")
    if kind in ("plain", "bf16"):
        return Plain(shapes, torch.float32 if kind == "plain" else torch.bfloat16)
    if kind == "power":
        return Power(shapes, int(options[0]), device, seed)
    if kind == "topk":
        return TopK(shapes, float(options[0]), workers)
    given = dict(option.split("=") for option in options[1:])
    chosen = {name: KINDS[name](text) for name, text in given.items()}
    return Sketch(shapes, Settings(float(options[0]), seed=seed, **chosen), workers, device)
