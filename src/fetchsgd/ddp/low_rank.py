"""Gradients as matrices of low rank, whose factors travel as whole levels (after PowerSGD).

Vogels, Karimireddy and Jaggi, PowerSGD, 2019: a matrix M is multiplied by the right factor Q of
the step before; the product P of all ranks, made orthogonal, is the left factor; and M^T P, of all
ranks again, is the new right one. What P Q^T does not say waits at each rank, in an error that is
added to its next gradient. Both products are linear in the gradient, so ranks' add up.

Here they add up as whole levels of a public step (levels.py), after their columns have been made of
like size by what they were in the step before. Errors take up what rounding leaves over, so

    mean of (gradients + errors before)  =  what is said  +  mean of errors after
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
ABOUT = 2  # beside a factor: the share of numbers that were cut off, and their mean square
Sizes = tuple[int, int]


def matrix_of(shape: torch.Size) -> Sizes:
    """The first dimension against all others."""
    return shape[0], shape.numel() // max(shape[0], 1)


def is_worth_it(shape: torch.Size, rank: int) -> bool:
    """Whether factors have less than half the numbers of the tensor."""
    if len(shape) < 2:
        return False
    rows, cols = matrix_of(shape)
    return 2 * rank * (rows + cols) < rows * cols


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


def orthogonal(factors: Sequence[Tensor]) -> list[Tensor]:
    """Gram and Schmidt, (n, rows, rank) of each group of matrices. Zeros stay zeros.

    All matrices together, with zeros below the shorter ones: columns are many, and each takes some
    launches on a GPU.
    """
    counts, rows = [len(one) for one in factors], max(one.shape[1] for one in factors)
    columns = factors[0].new_zeros(sum(counts), rows, factors[0].shape[2])
    for whole, one in zip(torch.split(columns, counts), factors, strict=True):
        whole[:, : one.shape[1]] = one
    for at in range(columns.shape[2]):
        one = columns[:, :, at : at + 1]
        one /= one.norm(dim=1, keepdim=True).clamp(min=SMALL)
        rest = columns[:, :, at + 1 :]
        rest.baddbmm_(one, one.mT @ rest, alpha=-1)
    parts = zip(torch.split(columns, counts), factors, strict=True)
    return [whole[:, : one.shape[1]] for whole, one in parts]


def chosen(is_finite: Tensor, new: Sequence[Tensor], old: Sequence[Tensor]) -> list[Tensor]:
    """What is new, unless something is not finite."""
    return [torch.where(is_finite, one, two) for one, two in zip(new, old, strict=True)]


@dataclass
class Factor:
    """One of both factors of all matrices, as it is sent: what all ranks know of it together."""

    levels: Levels
    scales: list[Tensor] = field(default_factory=list)  # (n, 1, rank) of each group
    step: Tensor | None = None  # of levels, in terms of the scales

    def messages(
        self, own: Sequence[Tensor], exact: Sequence[Tensor], key: int, place: int
    ) -> list[Tensor]:
        """What a rank says: what is beside, and the factor. Floats before sizes are known."""
        world = self.levels.world
        if self.scales:
            own = [one / scale for one, scale in zip(own, self.scales, strict=True)]
        vector = torch.cat([one.flatten() for one in own]).div_(world)
        about = torch.stack([torch.zeros_like(vector[0]), vector.square().mean()])
        packed = vector
        if self.step is not None:
            packed, about[0] = self.levels.pack(vector, self.step, key, place)
        beside = torch.cat([*(part.float() for part in exact), about]).div_(world)
        return [beside if self.step is None else beside.bfloat16(), packed]

    def read(
        self, messages: Sequence[Tensor], like: Sequence[Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """The factor of all ranks, and whether all was finite. The next step and sizes follow."""
        beside, vector = messages[0].float(), messages[1]
        is_finite = beside[-ABOUT:].isfinite().all()
        if self.step is not None:
            vector = self.levels.unpack(vector, self.step, sum(one.numel() for one in like))
        parts = torch.split(vector, [one.numel() for one in like])
        found = [part.view_as(one) for part, one in zip(parts, like, strict=True)]
        if self.scales:
            found = [one * scale for one, scale in zip(found, self.scales, strict=True)]
            before = torch.zeros_like(beside[0]) if self.step is None else self.step
            after = self.levels.next_step(before, beside[-2], beside[-1].sqrt())
            self.step = torch.where(is_finite, after, before)
        sizes = [one.square().mean(1, keepdim=True).sqrt().clamp(min=SMALL) for one in found]
        ones = [torch.ones_like(one) for one in sizes]
        self.scales = chosen(is_finite, sizes, self.scales or ones)
        return found, is_finite


class LowRankBucket:
    """One bucket on one rank: `first`, `second` and `finish`, with sums of all ranks in between."""

    def __init__(
        self, layout: Layout, rank: int, bits: int, place: int, world: int, device: torch.device,
        seed: int = 0,
    ) -> None:  # fmt: skip
        self.layout, self.place = layout, place
        self.groups = grouped(layout.compressed)
        dice = torch.Generator().manual_seed(seed)
        self.right = [
            torch.randn(len(group.places), group.sizes[1], rank, generator=dice).to(device)
            for group in self.groups
        ]
        self.errors: list[Tensor] = []
        self.said_left, self.said_right = (Factor(Levels(bits, world)) for _ in range(2))

    def first(self, buffer: Tensor, key: int) -> list[Tensor]:
        """The left factors of this rank, and what is never compressed."""
        self.buffer = buffer
        parts = of_pieces(buffer, self.layout.compressed)
        self.matrices = []
        for at, group in enumerate(self.groups):
            stacked = torch.stack([parts[place].float() for place in group.places])
            stacked = stacked.view(-1, *group.sizes)
            self.matrices.append(stacked + self.errors[at] if self.errors else stacked)
        self.basis = orthogonal(self.right)
        self.left = [m @ q for m, q in zip(self.matrices, self.basis, strict=True)]
        exact = of_pieces(buffer, self.layout.exact)
        return self.said_left.messages(self.left, exact, key, self.place)

    def second(self, messages: Sequence[Tensor], key: int) -> list[Tensor]:
        """The right factors of this rank, from the left ones of all."""
        found, self.is_finite = self.said_left.read(messages, self.left)
        sizes = self.layout.exact_sizes
        self.exact = torch.split(messages[0].float()[: sum(sizes)], sizes)
        self.left = orthogonal(found)
        own = [m.mT @ p for m, p in zip(self.matrices, self.left, strict=True)]
        return self.said_right.messages(own, [], key, self.place)

    def finish(self, messages: Sequence[Tensor]) -> Tensor:
        """What all ranks have said, into the bucket; the rest waits."""
        found, is_finite = self.said_right.read(messages, self.right)
        is_finite = is_finite & self.is_finite
        self.right = chosen(is_finite, found, self.right)
        said = [p @ q.mT for p, q in zip(self.left, found, strict=True)]
        rest = [m - one for m, one in zip(self.matrices, said, strict=True)]
        none = [torch.zeros_like(one) for one in rest]
        self.errors = chosen(is_finite, rest, self.errors or none)
        parts = of_pieces(self.buffer, self.layout.compressed)
        for group, matrices in zip(self.groups, said, strict=True):
            for place, one in zip(group.places, matrices, strict=True):
                parts[place].copy_(torch.where(is_finite, one.flatten(), torch.nan))
        for part, mean in zip(of_pieces(self.buffer, self.layout.exact), self.exact, strict=True):
            part.copy_(torch.where(is_finite, mean, torch.nan))
        return self.buffer
