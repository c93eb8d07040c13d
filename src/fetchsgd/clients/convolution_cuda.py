"""Clients' gradients of a convolution's weights on a GPU, from 16-bit floats, in one launch.

By way of patches in memory and a library's products, a round of 100 clients' ResNet9 writes and
reads 1.8 GB of patches, and reads and writes 2.6 GB of gradients once more to add the decay of the
weights. Here patches are taken from the images, in cache, and gradients are written once.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn
from torch.nn import functional

from fetchsgd.launch import launch

DTYPES = (torch.float16, torch.bfloat16)


class Tile(NamedTuple):
    """What a program takes at once, and how many warps share the work."""

    out: int
    columns: int
    places: int
    warps: int


MOST = Tile(out=128, columns=128, places=32, warps=8)


def serves(slopes: Tensor) -> bool:
    """Whether the program can run here."""
    return slopes.is_cuda and slopes.dtype in DTYPES and has_triton()


@lru_cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def write(
    layer: nn.Conv2d,
    inputs: Float[Tensor, "examples into height width"],
    slopes: Float[Tensor, "examples out rows columns"],
    weight: Float32[Tensor, "n out into down across"],
    bias: Float32[Tensor, "n out"] | None,
    decay: Float32[Tensor, "out into down across"] | None,
    tile: Tile | None = None,
    places_last: bool = True,
) -> None:
    """As `convolution` in layer_gradients.py; `decay` is added to the gradient of each weight.

    `weight` may lie inside of longer rows, but its own numbers lie one after another.
    """
    # Imported here because triton takes longer to import than the rest of the package.
    from fetchsgd.clients.convolution_programs import weight_gradients

    assert not isinstance(layer.padding, str)
    n, out = weight.shape[:2]
    slopes = slopes.contiguous(memory_format=torch.channels_last)
    images = padded(layer, inputs.to(slopes.dtype), places_last)
    each, columns = len(images) // n, weight[0, 0].numel()
    places = each * slopes.shape[2] * slopes.shape[3]
    tile = tile or tile_for(out, columns, places)
    tiles = -(-out // tile.out), -(-columns // tile.columns)
    by_image, by_channel, by_row, by_pixel = images.stride()
    launch(
        weight_gradients, (n * tiles[0] * tiles[1],),
        weight, weight if decay is None else decay, images, slopes,
        weight.stride(0), out, columns, places, each, *slopes.shape[2:], *layer.stride,
        by_image, by_channel, by_row, by_pixel,
        layer.dilation[0] * by_row, layer.dilation[1] * by_pixel, *tiles,
        DOWN=layer.kernel_size[0], ACROSS=layer.kernel_size[1], SHARED=decay is not None,
        PLACES_LAST=places_last, OUT=tile.out, COLUMNS=tile.columns, PLACES=tile.places,
        num_warps=tile.warps,
    )  # fmt: skip
    if bias is not None:
        torch.sum(slopes.view(n, each, *slopes.shape[1:]), (1, 3, 4), dtype=bias.dtype, out=bias)


def padded(layer: nn.Conv2d, images: Tensor, places_last: bool) -> Tensor:
    high, wide = (int(pad) for pad in layer.padding)
    layout = torch.contiguous_format if places_last else torch.channels_last
    images = images.contiguous(memory_format=layout)
    return functional.pad(images, (wide, wide, high, high)) if high or wide else images


def tile_for(out: int, columns: int, places: int) -> Tile:
    """Programs want powers of two, and products at least 16 of each."""
    fitting = [max(16, 1 << (count - 1).bit_length()) for count in (out, columns, places)]
    sizes = [min(pair) for pair in zip(MOST[:3], fitting, strict=True)]
    return Tile(sizes[0], sizes[1], sizes[2], MOST.warps)
