"""Clients' gradients of a convolution's weights on a GPU, from 16-bit floats.

They are products of slopes and patches, as in layer_gradients.py. But torch copies patches number
by number, and a library's product leaves the decay of the weights to another pass over all
gradients, of which 100 clients of ResNet9 have 2.6 GB. Here patches are copied in runs, and the
decay is added where a gradient is written.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from fetchsgd.launch import launch

DTYPES = (torch.float16, torch.bfloat16)
# Memory for patches, as in layer_gradients.py.
PATCH_BYTES = 1 << 30
# Places and channels that a program copies.
COPIED = 64


class Tile(NamedTuple):
    """What a program multiplies at once, how many warps share the work, and loads under way."""

    out: int = 128
    columns: int = 128
    places: int = 64
    warps: int = 4
    stages: int = 3


LARGEST = Tile()  # the fastest of twelve on an H200, over the layers of ResNet9


def serves(inputs: Tensor, slopes: Tensor, weight: Tensor) -> bool:
    """Whether the programs can run here."""
    is_there = slopes.is_cuda and slopes.dtype in DTYPES and has_triton()
    return is_there and is_small(inputs, slopes, weight)


def is_small(inputs: Tensor, slopes: Tensor, weight: Tensor) -> bool:
    """Within a client the programs count in 32 bits."""
    examples, out, rows, columns = slopes.shape
    patches = examples * rows * columns * max(weight[0, 0].numel(), out)
    return max(patches, inputs.numel()) < len(weight) << 31


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
) -> None:
    """As `convolution` in layer_gradients.py; `decay` is added to the gradient of each weight.

    `weight` may lie inside of longer rows, but its own numbers lie one after another.
    """
    n, each = len(weight), len(slopes) // len(weight)
    slopes = slopes.contiguous(memory_format=torch.channels_last)
    images = inputs.to(slopes.dtype).contiguous(memory_format=torch.channels_last)
    places = each * slopes.shape[2] * slopes.shape[3]
    columns = weight[0, 0].numel()
    step = min(max(PATCH_BYTES // (columns * places * slopes.element_size()), 1), n)
    patches = slopes.new_empty(step, columns, places)
    for start in range(0, n, step):
        some = slice(start * each, (start + step) * each)
        own = weight[start : start + step]
        copy_patches(layer, images[some], slopes.shape[2:], patches[: len(own)])
        multiply(slopes[some], patches[: len(own)], own, decay)
    if bias is not None:
        torch.sum(slopes.view(n, each, *slopes.shape[1:]), (1, 3, 4), dtype=bias.dtype, out=bias)


def copy_patches(
    layer: nn.Conv2d,
    images: Float[Tensor, "examples into height width"],
    size: torch.Size,
    patches: Float[Tensor, "n into*down*across places"],
) -> None:
    """size: of the outputs of one image."""
    # Imported here because triton takes longer to import than the rest of the package.
    from fetchsgd.clients import convolution_programs as programs

    assert not isinstance(layer.padding, str)
    n, _, places = patches.shape
    _, channels, height, width = images.shape
    at_once = min(COPIED, power_of_two(channels))
    place_tiles = -(-places // COPIED)
    tiles = place_tiles * -(-channels // at_once)
    launch(
        programs.copy_patches, (n * tiles,),
        patches, images, places, channels, len(images) // n, height, width, *size,
        *layer.stride, *layer.dilation, *layer.padding, place_tiles, tiles,
        DOWN=layer.kernel_size[0], ACROSS=layer.kernel_size[1], PLACES=COPIED, CHANNELS=at_once,
    )  # fmt: skip


def multiply(
    slopes: Float[Tensor, "examples out rows columns"],
    patches: Float[Tensor, "n into*down*across places"],
    weight: Float32[Tensor, "n out into down across"],
    decay: Float32[Tensor, "out into down across"] | None,
) -> None:
    from fetchsgd.clients import convolution_programs as programs

    (n, columns, places), out = patches.shape, weight.shape[1]
    tile = tile_for(out, columns, places)
    column_tiles = -(-columns // tile.columns)
    tiles = column_tiles * -(-out // tile.out)
    launch(
        programs.multiply_slopes, (n * tiles,),
        weight, weight if decay is None else decay, slopes, patches,
        weight.stride(0), out, columns, places, column_tiles, tiles,
        DECAYS=decay is not None, OUT=tile.out, COLUMNS=tile.columns, PLACES=tile.places,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def tile_for(out: int, columns: int, places: int) -> Tile:
    """The largest, or less where there is less: products take powers of two, from 16 on."""
    fitting = [max(16, power_of_two(count)) for count in (out, columns, places)]
    sizes = [min(pair) for pair in zip(LARGEST[:3], fitting, strict=True)]
    return Tile(sizes[0], sizes[1], sizes[2], LARGEST.warps, LARGEST.stages)


def power_of_two(count: int) -> int:
    """The first that is not less."""
    return 1 << (count - 1).bit_length()
