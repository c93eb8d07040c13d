"""The rotation on a CPU: cpu_loops.py, on as many threads as torch uses. Threads change no bit."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import torch
from jaxtyping import Float32, Int32
from torch import Tensor

from fetchsgd.sums.kernels.cpu_loops import GROUP, WIDTH, rotate_group
from fetchsgd.sums.layout import Layout
from fetchsgd.threads import run_in_order

BEFORE, AFTER = 1, 2  # when signs are applied


def rotate(
    rows: Float32[Tensor, "n count"], signs: Int32[Tensor, " words"], layout: Layout
) -> Float32[Tensor, "n cells"]:
    """Signs, then the Hadamard matrix of each block."""
    out = torch.empty(len(rows), layout.cells)
    near, far = _groups(layout)
    _pass(out, rows, signs, layout, 1, near, BEFORE, last=far == 1)
    if far > 1:
        _pass(out, out, signs, layout, near, far, 0, last=True)
    return out


def rotate_back(
    rows: Float32[Tensor, "n cells"], signs: Int32[Tensor, " words"], layout: Layout
) -> Float32[Tensor, "n count"]:
    """The Hadamard matrix, which is its own inverse, then signs."""
    out = torch.empty(len(rows), layout.count)
    near, far = _groups(layout)
    if far == 1:
        _pass(out, rows, signs, layout, 1, near, AFTER, last=True)
        return out
    between = torch.empty_like(rows)
    _pass(between, rows, signs, layout, 1, near, 0, last=False)
    _pass(out, between, signs, layout, near, far, AFTER, last=True)
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
    flips: int,
    last: bool,
) -> None:
    """Butterflies of all groups of `size` rows of the matrix that are `stride` apart."""
    target, source = out.numpy().view(np.uint32), rows.numpy().view(np.uint32)
    words = np.append(signs.numpy(), np.zeros(1, np.int32))
    scale = np.float32(1 / math.sqrt(layout.block) if last else 1)

    def rotate_some(task: tuple[int, int]) -> None:
        row, group = task
        first = group // stride * stride * size + group % stride
        buffer = np.empty(size * WIDTH, dtype=np.float32)
        rotate_group(
            target[row], source[row], words, layout.blocks, first, stride, size, flips, scale,
            buffer,
        )  # fmt: skip

    tasks = product(range(len(rows)), range(layout.block // size))
    list(run_in_order(rotate_some, tasks, rows.numel()))
