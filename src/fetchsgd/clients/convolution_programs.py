"""The Triton programs of convolution_cuda.py: patches of images, and products with the slopes.

Both are for all clients at once. Images and slopes are channels_last. A client's patches are a
matrix (into * down * across, places), in which a run of places is a run of memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Numbers of which nothing follows about whole words in memory: not compiled for each kind of them.
SIZES = [
    "images_each", "height", "width", "rows_out", "columns_out",
    "down_stride", "across_stride", "down_step", "across_step", "high", "wide",
]  # fmt: skip
TILES = ["out_tiles", "place_tiles", "tiles", "column_tiles"]


@triton.jit(do_not_specialize=[*SIZES, *TILES])
def copy_patches(
    patches, images, places, channels, images_each, height, width, rows_out, columns_out,
    down_stride, across_stride, down_step, across_step, high, wide, place_tiles, tiles,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, PLACES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Some channels of some places: read along channels and written along places.

    stride, step and high, wide: the convolution's stride, dilation and padding.
    """
    tile = tl.program_id(0) % tiles
    client = (tl.program_id(0) // tiles).to(tl.int64)
    place = tile % place_tiles * PLACES + tl.arange(0, PLACES)
    channel = tile // place_tiles * CHANNELS + tl.arange(0, CHANNELS)
    pixel = place % (rows_out * columns_out)
    image = place // (rows_out * columns_out)
    top = pixel // columns_out * down_stride - high
    left = pixel % columns_out * across_stride - wide
    images += client * images_each * height * width * channels
    patches += client * channels * DOWN * ACROSS * places
    exists = (place < places)[:, None] & (channel < channels)[None, :]
    for within in tl.static_range(DOWN * ACROSS):
        y = top + within // ACROSS * down_step
        x = left + within % ACROSS * across_step
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        at = (((image * height + y) * width + x) * channels)[:, None] + channel[None, :]
        values = tl.load(images + at, mask=exists & inside[:, None], other=0.0)
        row = channel * (DOWN * ACROSS) + within
        at = (row * places)[:, None] + place[None, :]
        tl.store(patches + at, tl.trans(values), mask=tl.trans(exists))


@triton.jit(do_not_specialize=TILES)
def multiply_slopes(
    gradients, decay, slopes, patches, client_stride, out, columns, places, column_tiles, tiles,
    DECAYS: tl.constexpr, OUT: tl.constexpr, COLUMNS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """One tile of OUT x COLUMNS numbers of one client's gradient, with what decays added."""
    tile = tl.program_id(0) % tiles
    client = (tl.program_id(0) // tiles).to(tl.int64)
    output = tile // column_tiles * OUT + tl.arange(0, OUT)
    column = tile % column_tiles * COLUMNS + tl.arange(0, COLUMNS)
    slopes += client * places * out
    patches += client * columns * places
    sums = tl.zeros((OUT, COLUMNS), tl.float32)
    for start in range(0, places, PLACES):
        place = start + tl.arange(0, PLACES)
        here = place < places
        left = tl.load(
            slopes + place[:, None] * out + output[None, :],
            mask=here[:, None] & (output < out)[None, :], other=0.0,
        )  # fmt: skip
        right = tl.load(
            patches + column[:, None] * places + place[None, :],
            mask=(column < columns)[:, None] & here[None, :], other=0.0,
        )  # fmt: skip
        sums = tl.dot(tl.trans(left), tl.trans(right), sums)
    at = output[:, None] * columns + column[None, :]
    exists = (output < out)[:, None] & (column < columns)[None, :]
    if DECAYS:
        sums += tl.load(decay + at, mask=exists, other=0.0)
    tl.store(gradients + client * client_stride + at, sums, mask=exists)
