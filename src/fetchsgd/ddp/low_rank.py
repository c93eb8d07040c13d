"""Gradients as matrices of low rank, whose factors travel as whole levels (after PowerSGD).

Vogels, Karimireddy and Jaggi, PowerSGD, 2019: a matrix M is multiplied by the right factor Q of
the step before; the product P of all ranks, made orthogonal, is the left factor; and M^T P, of all
ranks again, is the new right one. What P Q^T does not say waits at each rank, in an error that is
added to the next gradient. Both products are linear in the gradient, so ranks' add up.

Here they add up as whole levels of a public step (levels.py), after their columns have been made of
like size by what they were in the step before. Errors take up what rounding leaves over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fetchsgd.ddp.layout import Layout, Piece, of_pieces
from fetchsgd.ddp.levels import Levels

SMALL = 1e-30
Sizes = tuple[int, int]


def matrix_of(shape: torch.Size) -> Sizes:
    """The first dimension against all others."""
    return shape[0], shape.numel() // max(shape[0], 1)


def is_worth_it(shape: torch.Size, rank: int) -> bool:
    """Whether factors have less than half the numbers of the tensor."""
    rows, cols = matrix_of(shape)
    return len(shape) > 1 and 2 * rank * (rows + cols) < rows * cols


@dataclass(frozen=True)
class Matrices:
    """Tensors of one shape, which are worked on together."""

    sizes: Sizes
    places: tuple[int, ...]  # among the tensors that are compressed


def grouped(pieces: Sequence[Piece]) -> list[Matrices]:
    found: dict[Sizes, list[int]] = defaultdict(list)
    for place, piece in enumerate(pieces):
        found[matrix_of(piece.shape)].append(place)
    return [Matrices(sizes, tuple(places)) for sizes, places in found.items()]


def orthogonal(columns: Tensor) -> Tensor:
    """Gram and Schmidt, of many matrices at once: (n, rows, rank). Zeros stay zeros."""
    columns = columns.clone()
    for at in range(columns.shape[2]):
        one = columns[:, :, at : at + 1]
        one /= one.norm(dim=1, keepdim=True).clamp(min=SMALL)
        rest = columns[:, :, at + 1 :]
        rest -= one * (one * rest).sum(1, keepdim=True)
    return columns


@dataclass
class Factor:
    """One of both factors of all matrices, as it is sent: what all ranks know of it together."""

    scales: list[Tensor] = field(default_factory=list)  # (n, 1, rank) of each group
    step: Tensor | None = None  # of levels

    def vector(self, factors: Sequence[Tensor], world: int) -> Tensor:
        """What a rank rounds."""
        if self.scales:
            factors = [one / scale for one, scale in zip(factors, self.scales, strict=True)]
        return torch.cat([one.flatten() for one in factors]).div_(world)

    def factors(self, vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
        """From the sum of all ranks."""
        parts = vector.split([one.numel() for one in like])
        found = [part.view_as(one) for part, one in zip(parts, like, strict=True)]
        if self.scales:
            found = [one * scale for one, scale in zip(found, self.scales, strict=True)]
        return found

    def learn(self, found: Sequence[Tensor], levels: Levels, about: Tensor) -> None:
        """From what has been summed: the next step, and sizes of columns.

        The step is in terms of the scales that were there, so it follows their change.
        """
        before = self.scales
        self.scales = [one.square().mean(1, keepdim=True).sqrt().clamp(min=SMALL) for one in found]
        if before:
            step = torch.zeros_like(about[0]) if self.step is None else self.step
            self.step = levels.next_step(step, about[0], about[1].sqrt())


class LowRankBucket:
    """One bucket on one rank: `first`, `second` and `finish`, with sums of all ranks in between."""

    def __init__(
        self, layout: Layout, rank: int, bits: int, place: int, world: int, device: torch.device
    ) -> None:
        self.layout, self.place, self.world = layout, place, world
        self.levels = Levels(bits, world)
        self.groups = grouped(layout.compressed)
        dice = torch.Generator().manual_seed(0)
        self.right = [
            torch.randn(len(g.places), g.sizes[1], rank, generator=dice).to(device)
            for g in self.groups
        ]
        self.errors: list[Tensor] = []
        self.left_factor, self.right_factor = Factor(), Factor()
        self.left: list[Tensor] = []

    def first(self, buffer: Tensor, key: int) -> list[Tensor]:
        """The left factors of this rank, and what is never compressed."""
        self.buffer = buffer
        parts = of_pieces(buffer, self.layout.compressed)
        self.matrices = []
        for at, group in enumerate(self.groups):
            stacked = torch.stack([parts[place].float() for place in group.places])
            stacked = stacked.view(-1, *group.sizes)
            if self.errors:
                stacked += self.errors[at]
            self.matrices.append(stacked)
        self.right = [orthogonal(one) for one in self.right]
        self.left = [m @ q for m, q in zip(self.matrices, self.right, strict=True)]
        exact = of_pieces(buffer, self.layout.exact)
        return self._messages(self.left_factor, self.left, key, exact)

    def second(self, messages: Sequence[Tensor], key: int) -> list[Tensor]:
        """The right factors of this rank, from the left ones of all."""
        found = self._read(self.left_factor, self.left, messages)
        sizes = self.layout.exact_sizes
        self.exact = messages[0].float()[: sum(sizes)].split(sizes)
        self.left = [orthogonal(one) for one in found]
        own = [m.mT @ p for m, p in zip(self.matrices, self.left, strict=True)]
        return self._messages(self.right_factor, own, key, [])

    def finish(self, messages: Sequence[Tensor]) -> Tensor:
        """What all ranks have said, into the bucket; the rest waits."""
        self.right = self._read(self.right_factor, self.right, messages)
        parts = of_pieces(self.buffer, self.layout.compressed)
        self.errors = []
        for group, matrices, p, q in zip(
            self.groups, self.matrices, self.left, self.right, strict=True
        ):
            said = p @ q.mT
            self.errors.append(matrices - said)
            for place, one in zip(group.places, said, strict=True):
                parts[place].copy_(one.flatten())
        for part, mean in zip(of_pieces(self.buffer, self.layout.exact), self.exact, strict=True):
            part.copy_(mean)
        return self.buffer

    def _messages(
        self, factor: Factor, own: Sequence[Tensor], key: int, exact: Sequence[Tensor]
    ) -> list[Tensor]:
        vector = factor.vector(own, self.world)
        about = torch.stack([torch.zeros_like(vector[0]), vector.square().mean()])
        if factor.step is not None:
            packed, about[0] = self.levels.pack(vector, factor.step, key, self.place)
            beside = torch.cat([*(part.float() for part in exact), about]).div_(self.world)
            return [beside.bfloat16(), packed]
        beside = torch.cat([*(part.float() for part in exact), about]).div_(self.world)
        return [beside, vector]

    def _read(
        self, factor: Factor, like: Sequence[Tensor], messages: Sequence[Tensor]
    ) -> list[Tensor]:
        beside, vector = messages
        if factor.step is not None:
            count = sum(one.numel() for one in like)
            vector = self.levels.unpack(vector, factor.step, count)
        found = factor.factors(vector, like)
        factor.learn(found, self.levels, beside.float()[-2:])
        return found


def num_factor_cells(pieces: Sequence[Piece], rank: int) -> int:
    """How many numbers both factors of all tensors have."""
    return sum(rank * sum(matrix_of(piece.shape)) for piece in pieces)
