"""What the ways of rivals.py make of the gradients of all workers, in one process.

Each takes a step's gradients, (workers, size) for every tensor, and gives their mean as the workers
would have it. `sent` is the bytes that a worker hands to all-reduce in a step.

PowerSGD is linear in the gradients and in the errors that workers keep, so the mean of both says
all that there is to say. Top-k and levels are not: these work on each worker's numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from rivals import KINDS, START
from torch import Tensor, nn

from fetchsgd.ddp import SketchState
from fetchsgd.ddp.hook import exchange_of
from fetchsgd.ddp.layout import Layout, Piece
from fetchsgd.ddp.low_rank import LowRankBucket, is_worth_it

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
    """The hook itself, on one bucket, for one rank after the other."""

    is_linear = False

    def __init__(
        self, shapes: Sequence[torch.Size], settings: dict[str, Any], workers: int, device: str
    ) -> None:
        model = nn.ParameterList(nn.Parameter(torch.empty(s, device="meta")) for s in shapes)
        self.states = [SketchState(model, **settings) for _ in range(workers)]
        sizes = [shape.numel() for shape in shapes]
        starts = [sum(sizes[:at]) for at in range(len(sizes))]
        pieces = [
            Piece(name, start, size, shape)
            for name, start, size, shape in zip(
                self.states[0].names.values(), starts, sizes, shapes, strict=True
            )
        ]
        chosen = self.states[0].settings
        self.layout = Layout.of(pieces, [chosen.is_compressed(shape) for shape in shapes])
        self.sizes, self.device, self.sent = sizes, device, 0.0

    def mean(self, gradients: Gradients, step: int) -> list[Tensor]:
        world = len(self.states)
        rows = torch.cat(list(gradients), dim=1)
        exchanges = [
            exchange_of(state, self.layout, 0, step, [row], rank, world)
            for rank, (state, row) in enumerate(zip(self.states, rows, strict=True))
        ]
        for exchange in exchanges:
            exchange.fill()
        messages = [exchange.messages for exchange in exchanges]
        self.sent = float(sum(message.nbytes for message in messages[0]))
        for same in zip(*messages, strict=True):
            total = torch.stack(same).sum(0, dtype=same[0].dtype)
            for message in same:
                message.copy_(total)
        for exchange in exchanges:
            exchange.finish()
        return list(rows[0].split(self.sizes))


class LowRank:
    """Our hook for matrices of low rank, on one bucket, for one rank after the other."""

    is_linear = False

    def __init__(
        self, shapes: Sequence[torch.Size], rank: int, bits: int, workers: int, device: str
    ) -> None:
        self.sizes = [shape.numel() for shape in shapes]
        starts = [sum(self.sizes[:at]) for at in range(len(self.sizes))]
        pieces = [
            Piece(str(at), start, size, shape)
            for at, (start, size, shape) in enumerate(zip(starts, self.sizes, shapes, strict=True))
        ]
        layout = Layout.of(pieces, [is_worth_it(shape, rank) for shape in shapes])
        self.ranks = [
            LowRankBucket(layout, rank, bits, at, workers, torch.device(device))
            for at in range(workers)
        ]
        self.sent = 0.0

    def mean(self, gradients: Gradients, step: int) -> list[Tensor]:
        if step < START:
            return [each.mean(0) for each in gradients]
        rows = torch.cat(list(gradients), dim=1)
        pairs = zip(self.ranks, rows, strict=True)
        first = summed([rank.first(row, 2 * step) for rank, row in pairs])
        second = summed([rank.second(first, 2 * step + 1) for rank in self.ranks])
        for rank in self.ranks:
            rank.finish(second)
        self.sent = float(sum(message.nbytes for message in (*first, *second)))
        return list(rows[0].split(self.sizes))


def summed(messages: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.stack(same).sum(0, dtype=same[0].dtype) for same in zip(*messages, strict=True)]


def way(method: str, shapes: Sequence[torch.Size], workers: int, device: str, seed: int) -> Way:
    """From a text, as in rivals.py."""
    kind, *options = method.split(":")
    if kind in ("plain", "bf16"):
        return Plain(shapes, torch.float32 if kind == "plain" else torch.bfloat16)
    if kind == "power":
        return Power(shapes, int(options[0]), device, seed)
    if kind == "lowrank":
        return LowRank(shapes, int(options[0]), int(options[1]), workers, device)
    if kind == "topk":
        return TopK(shapes, float(options[0]), workers)
    given = dict(option.split("=") for option in options[1:])
    chosen = {name: KINDS[name](text) for name, text in given.items()}
    settings = {"compression": float(options[0]), "seed": seed} | chosen
    return Sketch(shapes, settings, workers, device)
