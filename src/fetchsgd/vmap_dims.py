"""The dimension that torch.func.vmap maps over, for functions that bring a vmap rule of their own.

vmap hands such a rule each tensor with the place of that dimension, or None where the tensor is the
same for all, and the dimension's size.
"""

from __future__ import annotations

from torch import Tensor


def mapped(x: Tensor, dim: int | None, size: int) -> Tensor:
    """With the mapped dimension in front."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def folded(x: Tensor, dim: int | None, size: int) -> Tensor:
    """With the mapped dimension in front of the batch and merged with it."""
    return mapped(x, dim, size).flatten(0, 1)


def unfolded(x: Tensor, size: int) -> Tensor:
    """The inverse of `folded`."""
    return x.view(size, -1, *x.shape[1:])
