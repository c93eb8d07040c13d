"""A vector that arrives in pieces, such as the gradients of a model's tensors."""

from __future__ import annotations

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor

# Coordinates handled at once where the work would otherwise need a dim-sized buffer.
SLICE = 1 << 22


def offsets(
    pieces: list[Float[Tensor, "n _"]], first: int = 0
) -> Iterator[tuple[int, Float[Tensor, "n _"]]]:
    """Each piece that is not empty, with the coordinate at which it starts, from `first` on."""
    for piece in pieces:
        if piece.shape[1]:
            yield first, piece
        first += piece.shape[1]


def slices(
    pieces: list[Float[Tensor, "n _"]], first: int = 0
) -> Iterator[tuple[int, Float[Tensor, "n _"]]]:
    """The same, cut further into parts of at most SLICE coordinates."""
    for begin, piece in offsets(pieces, first):
        for at in range(0, piece.shape[1], SLICE):
            yield begin + at, piece[:, at : at + SLICE]
