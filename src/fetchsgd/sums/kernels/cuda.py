"""The rotation on a GPU: cuda_programs.py, in two passes over memory. Nothing waits for it."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float32, Int32
from torch import Tensor

from fetchsgd.launch import launch
from fetchsgd.sums.kernels import cuda_programs as programs
from fetchsgd.sums.layout import Layout

GROUP = 64  # rows whose butterflies one program does
COLUMNS = 64


def rotate(
    rows: Float32[Tensor, "n count"], signs: Int32[Tensor, " words"], layout: Layout
) -> Float32[Tensor, "n cells"]:
    """Signs, then the Hadamard matrix of each block."""
    out = torch.empty(len(rows), layout.cells, dtype=torch.float32, device=rows.device)
    near, far = _groups(layout)
    _pass(out, rows, signs, layout, 1, near, before=True, last=far == 1)
    if far > 1:
        _pass(out, out, signs, layout, near, far, last=True)
    return out


def rotate_back(
    rows: Float32[Tensor, "n cells"], signs: Int32[Tensor, " words"], layout: Layout
) -> Float32[Tensor, "n count"]:
    """The Hadamard matrix, which is its own inverse, then signs."""
    out = torch.empty(len(rows), layout.count, dtype=torch.float32, device=rows.device)
    near, far = _groups(layout)
    if far == 1:
        _pass(out, rows, signs, layout, 1, near, after=True, last=True)
        return out
    between = torch.empty_like(rows)
    _pass(between, rows, signs, layout, 1, near)
    _pass(out, between, signs, layout, near, far, after=True, last=True)
    return out


def _groups(layout: Layout) -> tuple[int, int]:
    """Rows of a group of neighbours, and of a group of those that are so far apart."""
    near = min(layout.block, GROUP)
    return near, layout.block // near


def _pass(
    out: Tensor,
    rows: Tensor,
    signs: Tensor,
    layout: Layout,
    stride: int,
    size: int,
    *,
    before: bool = False,
    after: bool = False,
    last: bool = False,
) -> None:
    """Butterflies of all groups of `size` rows of the matrix that are `stride` apart."""
    n, tiles, groups = len(rows), -(-layout.blocks // COLUMNS), layout.block // size
    if n * tiles == 0:
        return
    launch(
        programs.rotate_rows, (n * tiles * groups,),
        out, rows, signs, rows.shape[1], out.shape[1], layout.blocks, tiles, groups, stride,
        1 / math.sqrt(layout.block) if last else 1.0,
        ROWS=size, LOG_ROWS=size.bit_length() - 1, FLIP_BEFORE=before, FLIP_AFTER=after,
        COLUMNS=COLUMNS, num_warps=2,
    )  # fmt: skip
