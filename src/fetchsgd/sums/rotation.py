"""A random rotation that all clients of a round share: signs, and a Hadamard matrix in each block.

A block's cells are then sums of all its numbers with random signs: close to normal, and of equal
size, whatever the numbers were. So no single cell is so large that it alone wraps around. It is
linear, so the sum of rotated vectors is the rotated sum, and it keeps lengths.

The signs follow from the key of the round: bit t % 32 of word t // 32 of the words of stream
`STREAM`, by the generator with which clients round (quantisers/kernels/reference.py).
"""

from __future__ import annotations

import torch
from jaxtyping import Float32, Int32
from torch import Tensor

from fetchsgd.sums.kernels import kernels_for
from fetchsgd.sums.layout import Layout

STREAM = (1 << 63) - 1  # no client has this number


def signs_of(layout: Layout, key: int, device: torch.device) -> Int32[Tensor, " words"]:
    """A bit for each cell, by the key of the round."""
    return kernels_for(device).words(STREAM, layout.words, key, device)


def rotate(
    rows: Float32[Tensor, "n count"], signs: Int32[Tensor, " words"]
) -> Float32[Tensor, "n cells"]:
    """Each row rotated, filled up to whole blocks."""
    layout = Layout.of(rows.shape[1])
    return kernels_for(rows.device).rotate(rows.contiguous(), signs, layout)


def rotate_back(
    rows: Float32[Tensor, "n cells"], signs: Int32[Tensor, " words"], layout: Layout
) -> Float32[Tensor, "n count"]:
    """The inverse, without what filled up the last block."""
    return kernels_for(rows.device).rotate_back(rows.contiguous(), signs, layout)
