"""Random crops and flips of a batch of images, on their device (appendix A.1)."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

PADDING = 4


def crop_and_flip(
    images: Shaped[Tensor, "n channels height width"], generator: torch.Generator
) -> Shaped[Tensor, "n channels height width"]:
    """Pad each image by its reflection, cut its own size out at random, mirror it or not.

    One gather does it all: padding and mirroring are arithmetic on the indices, and nothing waits
    for the device.
    """
    n, _, height, width = images.shape
    draw = partial(torch.randint, generator=generator, device=images.device)
    down, right = draw(2 * PADDING + 1, (2, n, 1)) - PADDING
    mirrored = draw(2, (n, 1)).bool()
    across = torch.arange(width, device=images.device).expand(n, width)
    across = torch.where(mirrored, across.flip(1), across)
    rows = reflected(torch.arange(height, device=images.device) + down, height)
    columns = reflected(across + right, width)
    pixels = (rows[:, :, None] * width + columns[:, None, :]).view(n, 1, height * width)
    flat = images.flatten(2)
    return flat.gather(2, pixels.expand(flat.shape)).view(images.shape)


def reflected(positions: Int64[Tensor, "n size"], size: int) -> Int64[Tensor, "n size"]:
    """Positions outside of [0, size) mirrored at its ends, which are not repeated."""
    last = size - 1
    inside: Tensor = last - (last - positions.abs()).abs()
    return inside
