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

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.ddp.layout import Layout, Piece, of_pieces
from fetchsgd.ddp.levels import Levels

SMALL = 1e-30
ABOUT = 2  # beside a factor: the share of numbers that were cut off, and their mean square
Sizes = tuple[int, int]
Columns = Float32[Tensor, "n rows rank"]


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
    pieces: tuple[Piece, ...]

    @property
    def numel(self) -> int:
        return len(self.pieces) * self.sizes[0] * self.sizes[1]


def grouped(pieces: Sequence[Piece]) -> list[Matrices]:
    found: dict[Sizes, list[Piece]] = defaultdict(list)
    for piece in pieces:
        found[matrix_of(piece.shape)].append(piece)
    return [Matrices(sizes, tuple(those)) for sizes, those in found.items()]


def orthogonal(columns: Columns) -> Columns:
    """Gram and Schmidt, for each of n. Zeros stay zeros."""
    columns = columns.clone()
    for at in range(columns.shape[2]):
        one = columns[:, :, at : at + 1]
        one /= one.norm(dim=1, keepdim=True).clamp(min=SMALL)
        rest = columns[:, :, at + 1 :]
        rest.baddbmm_(one, one.mT @ rest, alpha=-1)
    return columns


class Shape:
    """Of one of both factors of all matrices together: (n, rows of the longest, rank).

    Below the shorter ones are zeros. So what is done to all of them takes one launch on a GPU, and
    not one for each shape; the zeros are not sent.
    """

    def __init__(self, groups: Sequence[Matrices], side: int, rank: int, device: torch.device):
        self.counts = [len(group.pieces) for group in groups]
        self.rows = [group.sizes[side] for group in groups]
        self.all = sum(self.counts), max(self.rows), rank
        lengths = torch.tensor(self.rows).repeat_interleave(torch.tensor(self.counts))
        is_there = torch.arange(self.all[1]) < lengths[:, None]
        places = is_there[:, :, None].expand(self.all).flatten().nonzero().flatten()
        self.lengths, self.places = lengths.view(-1, 1, 1).to(device), places.to(device)

    def parts(self, columns: Columns) -> list[Tensor]:
        """(n, rows, rank) of each group of matrices."""
        split = torch.split(columns, self.counts)
        return [part[:, :rows] for part, rows in zip(split, self.rows, strict=True)]

    def together(self, parts: Sequence[Tensor]) -> Columns:
        columns = parts[0].new_zeros(self.all)
        for whole, part in zip(self.parts(columns), parts, strict=True):
            whole.copy_(part)
        return columns

    def sent(self, columns: Columns) -> Tensor:
        """Without the zeros."""
        return columns.flatten().index_select(0, self.places)

    def received(self, vector: Tensor) -> Columns:
        zeros = vector.new_zeros(math.prod(self.all))
        return zeros.index_copy_(0, self.places, vector).view(self.all)


@dataclass
class Factor:
    """One of both factors of all matrices, as it is sent: what all ranks know of it together."""

    levels: Levels
    shape: Shape
    scales: Tensor | None = None  # (n, 1, rank)
    step: Tensor | None = None  # of levels, in terms of the scales

    def messages(self, own: Columns, exact: Sequence[Tensor], key: int, place: int) -> list[Tensor]:
        """What a rank says: what is beside, and the factor. Floats before sizes are known."""
        world = self.levels.world
        if self.scales is not None:
            own = own / self.scales
        vector = self.shape.sent(own).div_(world)
        about = torch.stack([torch.zeros_like(vector[0]), vector.square().mean()])
        packed = vector
        if self.step is not None:
            packed, about[0] = self.levels.pack(vector, self.step, key, place)
        beside = torch.cat([*(part.float() for part in exact), about]).div_(world)
        return [beside if self.step is None else beside.bfloat16(), packed]

    def read(self, messages: Sequence[Tensor]) -> tuple[Columns, Tensor]:
        """The factor of all ranks, and whether all was finite. The next step and sizes follow."""
        beside, vector = messages[0].float(), messages[1]
        is_finite = beside[-ABOUT:].isfinite().all()
        if self.step is not None:
            vector = self.levels.unpack(vector, self.step, len(self.shape.places))
        found = self.shape.received(vector)
        if self.scales is not None:
            found *= self.scales
            before = torch.zeros_like(beside[0]) if self.step is None else self.step
            after = self.levels.next_step(before, beside[-2], beside[-1].sqrt())
            self.step = torch.where(is_finite, after, before)
        squares = found.square().sum(1, keepdim=True)
        sizes = squares.div_(self.shape.lengths).sqrt_().clamp_(min=SMALL)
        last = torch.ones_like(sizes) if self.scales is None else self.scales
        self.scales = torch.where(is_finite, sizes, last)
        return found, is_finite


class LowRankBucket:
    """One bucket on one rank: `first`, `second` and `finish`, with sums of all ranks in between."""

    def __init__(
        self, layout: Layout, rank: int, bits: int, place: int, world: int, device: torch.device,
        seed: int = 0,
    ) -> None:  # fmt: skip
        self.layout, self.place = layout, place
        self.groups = grouped(layout.compressed)
        self.pieces = [piece for group in self.groups for piece in group.pieces]
        self.left_shape, self.right_shape = (
            Shape(self.groups, side, rank, device) for side in (0, 1)
        )
        dice = torch.Generator().manual_seed(seed)
        drawn = [
            torch.randn(len(group.pieces), group.sizes[1], rank, generator=dice)
            for group in self.groups
        ]
        self.right = self.right_shape.together([one.to(device) for one in drawn])
        self.errors: Tensor | None = None  # of all pieces, one after the other
        self.said_left = Factor(Levels(bits, world), self.left_shape)
        self.said_right = Factor(Levels(bits, world), self.right_shape)

    @property
    def matrices(self) -> list[Tensor]:
        """(n, rows, columns) of each group: gradients, and what has waited."""
        parts = torch.split(self.whole, [group.numel for group in self.groups])
        return [part.view(-1, *group.sizes) for part, group in zip(parts, self.groups, strict=True)]

    def first(self, buffer: Tensor, key: int) -> list[Tensor]:
        """The left factors of this rank, and what is never compressed."""
        self.buffer = buffer
        self.whole = torch.cat([part.float() for part in of_pieces(buffer, self.pieces)])
        if self.errors is not None:
            self.whole += self.errors
        basis = self.right_shape.parts(orthogonal(self.right))
        products = [m @ q for m, q in zip(self.matrices, basis, strict=True)]
        exact = of_pieces(buffer, self.layout.exact)
        own = self.left_shape.together(products)
        return self.said_left.messages(own, exact, key, self.place)

    def second(self, messages: Sequence[Tensor], key: int) -> list[Tensor]:
        """The right factors of this rank, from the left ones of all."""
        found, self.is_finite = self.said_left.read(messages)
        self.exact = messages[0].float()[:-ABOUT]
        self.left = self.left_shape.parts(orthogonal(found))
        products = [m.mT @ p for m, p in zip(self.matrices, self.left, strict=True)]
        own = self.right_shape.together(products)
        return self.said_right.messages(own, [], key, self.place)

    def finish(self, messages: Sequence[Tensor]) -> Tensor:
        """What all ranks have said, into the bucket; the rest waits."""
        found, is_finite = self.said_right.read(messages)
        is_finite = is_finite & self.is_finite
        self.right = torch.where(is_finite, found, self.right)
        right = self.right_shape.parts(found)
        said = [(p @ q.mT).flatten() for p, q in zip(self.left, right, strict=True)]
        whole = torch.cat(said)
        before = torch.zeros_like(whole) if self.errors is None else self.errors
        self.errors = torch.where(is_finite, self.whole - whole, before)
        self._write(self.pieces, torch.where(is_finite, whole, torch.nan))
        self._write(self.layout.exact, torch.where(is_finite, self.exact, torch.nan))
        return self.buffer

    def _write(self, pieces: Sequence[Piece], vector: Tensor) -> None:
        if pieces:
            parts = torch.split(vector, [piece.size for piece in pieces])
            torch._foreach_copy_(of_pieces(self.buffer, pieces), parts)
