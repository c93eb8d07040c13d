"""The rotation in plain torch, from its definition; slow, on any device."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float32, Int32
from torch import Tensor

from fetchsgd.quantisers.kernels.reference import random_words
from fetchsgd.quantisers.level_layout import num_runs
from fetchsgd.sums.layout import Layout


def words(stream: int, count: int, key: int, device: torch.device) -> Int32[Tensor, " words"]:
    """The first random words of a stream."""
    streams = torch.full((1,), stream, dtype=torch.int64, device=device)
    found = random_words(streams, num_runs(count), key).flatten()[:count]
    # From 2^31 on, int32 holds the same bits as a negative number.
    return torch.where(found > 0x7FFFFFFF, found - (1 << 32), found).to(torch.int32)


def rotate(
    rows: Float32[Tensor, "n count"], signs: Int32[Tensor, " words"], layout: Layout
) -> Float32[Tensor, "n cells"]:
    """Signs, then the Hadamard matrix of each block."""
    filled = torch.nn.functional.pad(rows, (0, layout.cells - layout.count))
    return _hadamard(_flipped(filled, signs), layout)


def rotate_back(
    rows: Float32[Tensor, "n cells"], signs: Int32[Tensor, " words"], layout: Layout
) -> Float32[Tensor, "n count"]:
    """The Hadamard matrix, which is its own inverse, then signs."""
    return _flipped(_hadamard(rows, layout), signs)[:, : layout.count].contiguous()


def _flipped(
    rows: Float32[Tensor, "n cells"], signs: Int32[Tensor, " words"]
) -> Float32[Tensor, "n cells"]:
    """Bit t % 32 of word t // 32 says whether cell t is negated."""
    bits = signs[:, None] >> torch.arange(32, dtype=torch.int32, device=signs.device) & 1
    return torch.where(bits.flatten()[: rows.shape[1]] > 0, -rows, rows)


def _hadamard(rows: Float32[Tensor, "n cells"], layout: Layout) -> Float32[Tensor, "n cells"]:
    half = 1
    while half < layout.block:
        pairs = rows.view(len(rows), -1, 2, half, layout.blocks)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        rows = torch.stack([a + b, a - b], dim=2).view(rows.shape)
        half *= 2
    return rows * (1 / math.sqrt(layout.block))
