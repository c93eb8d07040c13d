"""Where the tensors of a bucket are in it, and which of them are compressed.

DDP hands over a bucket as one vector. Asking it for the tensors in it takes as long as all else
that the hook does, so that is done once, when a bucket is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """One tensor of a bucket."""

    name: str
    start: int
    size: int
    shape: torch.Size


@dataclass(frozen=True, eq=False)
class Layout:
    """compressed, exact: tensors of the bucket, in the model's order.

    Buckets of the first step and of later ones have other orders.
    """

    compressed: tuple[Piece, ...]
    exact: tuple[Piece, ...]

    @classmethod
    def of(cls, pieces: Sequence[Piece], is_wide: Sequence[bool]) -> Layout:
        """From all pieces in the model's order, and which of them are compressed."""
        pairs = list(zip(pieces, is_wide, strict=True))
        return cls(
            tuple(piece for piece, wide in pairs if wide),
            tuple(piece for piece, wide in pairs if not wide),
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of what is compressed."""
        return tuple(piece.name for piece in self.compressed)

    @cached_property
    def sizes(self) -> list[int]:
        return [piece.size for piece in self.compressed]

    @cached_property
    def exact_sizes(self) -> list[int]:
        return [piece.size for piece in self.exact]

    @cached_property
    def dim(self) -> int:
        """How many weights are compressed."""
        return sum(self.sizes)


def pieces_of(buffer: Tensor, gradients: Sequence[Tensor], names: Sequence[str]) -> list[Piece]:
    """Of a bucket's tensors, in its order."""
    found = []
    for name, gradient in zip(names, gradients, strict=True):
        start = int(gradient.storage_offset() - buffer.storage_offset())
        assert gradient.is_contiguous(), name  # they are views of a vector
        found.append(Piece(name, start, gradient.numel(), gradient.shape))
    return found


def of_pieces(buffer: Tensor, pieces: Sequence[Piece]) -> list[Tensor]:
    """Their flat views of the bucket."""
    return [buffer[piece.start : piece.start + piece.size] for piece in pieces]
