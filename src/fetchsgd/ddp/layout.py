"""Where the tensors of some buckets are in them, and which of them are compressed.

DDP hands over a bucket as one vector. Asking it for the tensors in it takes as long as all else
that the hook does, so that is done once, when a bucket is new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """One tensor of a bucket; which of them, where several are exchanged together."""

    name: str
    start: int
    size: int
    shape: torch.Size
    bucket: int = 0


@dataclass(frozen=True, eq=False)
class Layout:
    """compressed, exact: tensors of one bucket or of several, in the model's order.

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

    @classmethod
    def together(cls, layouts: Sequence[Layout], place: Callable[[str], int]) -> Layout:
        """Of several buckets, as of a single one. place: of a name in the model."""

        def merged(parts: Sequence[tuple[Piece, ...]]) -> tuple[Piece, ...]:
            moved = (replace(p, bucket=at) for at, part in enumerate(parts) for p in part)
            return tuple(sorted(moved, key=lambda piece: place(piece.name)))

        wide, exact = [one.compressed for one in layouts], [one.exact for one in layouts]
        return cls(merged(wide), merged(exact))

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
    return of_buckets([buffer], pieces)


def of_buckets(buffers: Sequence[Tensor], pieces: Sequence[Piece]) -> list[Tensor]:
    """The same of several buckets."""
    return [buffers[piece.bucket][piece.start : piece.start + piece.size] for piece in pieces]
