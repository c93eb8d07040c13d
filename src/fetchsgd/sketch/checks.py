"""Refuse bad input with a sentence that names the argument, its value and what would be right."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def check_whole_number(name: str, value: object, low: int, high: int | None = None) -> None:
    """A Python int in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if high is None and value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")
    if high is not None and not low <= value <= high:
        raise ValueError(f"{name} must be from {low} to {high}, got {value}")


def check_pieces(
    x: Tensor | Sequence[Tensor], dim: int, batched: bool
) -> tuple[list[Float[Tensor, "n _"]], bool]:
    """The vector or batch as 2-d pieces with unit stride, and whether it is a batch."""
    if isinstance(x, Tensor):
        if batched and x.ndim != 2:
            raise ValueError(f"a batch must have shape (n, {dim}), got {tuple(x.shape)}")
        tensors, batched = [x], batched or x.ndim == 2
        if x.ndim not in (1, 2) or x.shape[-1] != dim:
            raise ValueError(
                f"x must have shape ({dim},), or (n, {dim}) for a batch, got {tuple(x.shape)}"
            )
    else:
        tensors = list(x)
        _check_list(tensors, dim, batched)
    _check_kind(tensors)
    pieces = [t.detach().reshape(t.shape[0] if batched else 1, -1) for t in tensors if t.numel()]
    if not pieces:  # a batch of no vectors
        pieces = [torch.zeros(0, dim, dtype=tensors[0].dtype, device=tensors[0].device)]
    return [p if p.stride(1) == 1 else p.contiguous() for p in pieces], batched


def _check_list(tensors: list[Tensor], dim: int, batched: bool) -> None:
    if not tensors or not all(isinstance(t, Tensor) for t in tensors):
        kinds = sorted({type(t).__name__ for t in tensors})
        raise TypeError(f"x must be a tensor or a list of tensors, got a list of {kinds}")
    if batched:
        counts = {t.shape[0] if t.ndim else None for t in tensors}
        if len(counts) != 1 or None in counts:
            raise ValueError(f"the tensors of a batch differ in their first dimension: {counts}")
    lengths = [t[0].numel() if batched and len(t) else t.numel() for t in tensors]
    empty_batch = batched and not len(tensors[0])
    if sum(lengths) != dim and not empty_batch:
        raise ValueError(f"the tensors of x have {sum(lengths)} elements together, not dim={dim}")


def _check_kind(tensors: list[Tensor]) -> None:
    dtypes = {t.dtype for t in tensors}
    if len(dtypes) > 1 or not dtypes <= set(FLOATS):
        names = ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
        raise TypeError(f"x must be all float32, all float16 or all bfloat16, got {names}")
    devices = {t.device for t in tensors}
    if len(devices) > 1:
        raise ValueError(f"the tensors of x are on different devices: {sorted(map(str, devices))}")


def check_span(first: int, count: int, dim: int) -> range:
    """Coordinates first to first + count - 1, all of them below dim."""
    check_whole_number("first", first, 0, dim)
    check_whole_number("count", count, 0)
    if first + count > dim:
        raise ValueError(
            f"coordinates {first} to {first + count - 1} go beyond the vector, whose last is "
            f"{dim - 1}"
        )
    return range(first, first + count)


def check_table(table: Tensor, rows: int, cols: int, finite: bool) -> None:
    """A float32 table of this sketch's shape, finite if asked."""
    if not isinstance(table, Tensor):
        raise TypeError(f"table must be a tensor, got {type(table).__name__}")
    if tuple(table.shape) != (rows, cols):
        raise ValueError(
            f"table must have this sketch's shape ({rows}, {cols}), got {tuple(table.shape)}"
        )
    if table.dtype != torch.float32:
        raise TypeError(f"table must be float32, got {str(table.dtype).removeprefix('torch.')}")
    if finite:
        refuse_infinite(table, table.sum())


def refuse_infinite(table: Tensor, total: Tensor) -> None:
    """Refuse NaN and infinity, given the sum of all cells, which is finite only if they are."""
    if math.isfinite(float(total)):
        return
    bad = ~torch.isfinite(table)
    if not bad.any():  # finite cells, whose sum overflowed
        return
    row, col = bad.nonzero()[0].tolist()
    raise ValueError(
        f"table must be finite, but table[{row}, {col}] is {float(table[row, col])}"
        f" ({int(bad.sum())} such cells)"
    )
