"""The Triton program of convolution_cuda.py: clients' gradients of a convolution's weights.

A client's gradient is the product of the slopes at the outputs (places x out) and of the patches of
its images (places x into*down*across). Patches are never written: a program takes the numbers of
its own columns of them out of the images. It adds what belongs to every client, the decay of the
weights, and writes each number once.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Numbers of which nothing follows about whole words in memory: not compiled for each kind of them.
PLAIN = [
    "places", "images_each", "rows_out", "columns_out", "down_stride", "across_stride",
    "image_stride", "row_stride", "below", "beside", "out_tiles", "column_tiles",
]  # fmt: skip


@triton.jit(do_not_specialize=PLAIN)
def weight_gradients(
    gradients, shared, images, slopes,
    client_stride, out, columns, places, images_each, rows_out, columns_out, down_stride,
    across_stride, image_stride, channel_stride, row_stride, pixel_stride, below, beside,
    out_tiles, column_tiles,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, SHARED: tl.constexpr, PLACES_LAST: tl.constexpr,
    OUT: tl.constexpr, COLUMNS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """One tile of OUT x COLUMNS numbers of one client's gradient.

    Images are padded; slopes lie as (client, place, out). `down_stride` and `across_stride` are the
    strides of the convolution, `below` and `beside` its dilation in memory.
    """
    tile = tl.program_id(0) % (out_tiles * column_tiles)
    client = (tl.program_id(0) // (out_tiles * column_tiles)).to(tl.int64)
    output = tile // column_tiles * OUT + tl.arange(0, OUT)
    column = tile % column_tiles * COLUMNS + tl.arange(0, COLUMNS)
    in_kernel = column % (DOWN * ACROSS)
    of_column = column // (DOWN * ACROSS) * channel_stride
    of_column += in_kernel // ACROSS * below + in_kernel % ACROSS * beside
    images += client * images_each * image_stride
    slopes += client * places * out
    sums = tl.zeros((OUT, COLUMNS), tl.float32)
    for start in range(0, places, PLACES):
        place = start + tl.arange(0, PLACES)
        pixel = place % (rows_out * columns_out)
        of_place = place // (rows_out * columns_out) * image_stride
        of_place += pixel // columns_out * down_stride * row_stride
        of_place += pixel % columns_out * across_stride * pixel_stride
        here = place < places
        left = tl.load(
            slopes + place[:, None] * out + output[None, :],
            mask=here[:, None] & (output < out)[None, :], other=0.0,
        )  # fmt: skip
        # Neighbours in memory should be loaded by neighbours among the threads.
        if PLACES_LAST:
            at = of_column[:, None] + of_place[None, :]
            exists = (column < columns)[:, None] & here[None, :]
            right = tl.trans(tl.load(images + at, mask=exists, other=0.0))
        else:
            at = of_place[:, None] + of_column[None, :]
            exists = here[:, None] & (column < columns)[None, :]
            right = tl.load(images + at, mask=exists, other=0.0)
        sums = tl.dot(tl.trans(left), right, sums)
    at = output[:, None] * columns + column[None, :]
    exists = (output < out)[:, None] & (column < columns)[None, :]
    if SHARED:
        sums += tl.load(shared + at, mask=exists, other=0.0)
    tl.store(gradients + client * client_stride + at, sums, mask=exists)
