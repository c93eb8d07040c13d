"""Convolutions of many clients at once, where each client has its own weights.

vmap makes one grouped convolution of them, for which libraries have no fast kernels. Here they are
batched products of patches and weights, as in layer_gradients.py: one product forward, one for the
weights' gradient, and one for the images', whose patches are then summed where they overlap.
Outputs are channels_last, in which pooling, adding and the next layer's patches are runs of memory.

Patches with channels last are copied in runs of many bytes, but want weights with channels last:
4 more passes over weights (reordered, and their gradient back). Of 100 clients' ResNet9 with 5
images each, in float32, weights are 2.6 GB and patches 3.6 GB. The layers that see more places than
they have outputs hold 84% of the patches and 10% of the weights: they reorder weights, at 1.1 GB.
The others would move 9.4 GB to speed up the copies of 0.6 GB of patches: they leave channels first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from fetchsgd.clients.layer_gradients import (
    is_known,
    multiply,
    patches_of,
    precision_of_convolutions,
)
from fetchsgd.vmap_dims import folded, mapped, unfolded

WORD = 16  # bytes that a GPU loads at once

Image = Float[Tensor, "examples channels height width"]
Images = Float[Tensor, "n examples channels height width"]
Patches = Float[Tensor, "n places channels*down*across"]  # ordered as `wants_channels_last` says
Matrices = Float[Tensor, "n out channels*down*across"]  # likewise


@contextmanager
def per_client_convolutions(module: nn.Module) -> Iterator[None]:
    """While this lasts, the module's convolutions are PerClientConvolution's."""
    layers = [
        part
        for part in module.modules()
        if type(part) is nn.Conv2d and is_known(part) and "forward" not in vars(part)
    ]
    try:
        for layer in layers:
            vars(layer)["forward"] = partial(convolved, layer)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def convolved(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """What the layer makes of x, with the weights that it has at the time of the call."""
    if x.ndim != 4:
        return nn.Conv2d.forward(layer, x)
    apply: Any = PerClientConvolution.apply
    y: Tensor = apply(autocast(x), layer.weight, layer)
    return y if layer.bias is None else y + layer.bias.to(y.dtype)[:, None, None]


def autocast(x: Tensor) -> Tensor:
    """As torch does it for its own convolutions."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
        return x.to(torch.get_autocast_dtype(kind))
    return x


class PerClientConvolution(torch.autograd.Function):
    """From images and weights to convolved images, without a bias, in the dtype of the images.

    Fast where weights are mapped, and differentiated from outside of vmap. Inside of it, as by
    vmap(grad(...)), the backward pass is that of grouped convolutions.
    """

    @staticmethod
    def forward(x: Image, weight: Tensor, layer: nn.Conv2d) -> Image:
        weight = weight.to(x.dtype)
        return functional.conv2d(x, weight, None, layer.stride, layer.padding, layer.dilation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, nn.Conv2d], output: Tensor) -> None:  # noqa: ARG004
        x, weight, ctx.layer = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *slopes: Image) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        options = ctx.layer.stride, ctx.layer.padding, ctx.layer.dilation
        of_image: Any = conv2d_input
        of_weight: Any = conv2d_weight
        at_x = at_weight = None
        if ctx.needs_input_grad[0]:
            at_x = of_image(x.shape, weight.to(x.dtype), slopes[0], *options)
        if ctx.needs_input_grad[1]:
            at_weight = of_weight(x, weight.shape, slopes[0], *options).to(weight.dtype)
        return at_x, at_weight, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, layer: nn.Conv2d
    ) -> tuple[Tensor, int]:
        n = info.batch_size
        if in_dims[1] is None:
            apply: Any = PerClientConvolution.apply
            return unfolded(apply(folded(x, in_dims[0], n), weight, layer), n), 0
        together: Any = BatchedConvolution.apply
        return together(mapped(x, in_dims[0], n), mapped(weight, in_dims[1], n), layer), 0


class BatchedConvolution(torch.autograd.Function):
    """The same for all clients, as batched products."""

    @staticmethod
    def forward(
        ctx: Any, x: Images, weight: Float[Tensor, "n out channels down across"], layer: nn.Conv2d
    ) -> Images:
        views = patch_views(layer, x)
        places = views.shape[1:4]
        channels_last = wants_channels_last(places, weight.shape[1])
        patches = patch_rows(views, channels_last)
        matrices = weight_matrices(weight, x.dtype, channels_last)
        ctx.layer, ctx.channels_last = layer, channels_last
        ctx.size, ctx.dtype = x.shape[3:], weight.dtype
        ctx.save_for_backward(patches, matrices)
        with precision_of_convolutions():
            y = torch.bmm(patches, matrices.mT)
        # A view could not be overwritten, as nn.ReLU(inplace=True) does.
        return y.view(len(x), *places, -1).permute(0, 1, 4, 2, 3).detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Images) -> tuple[Tensor | None, Tensor | None, None]:
        patches, matrices = ctx.saved_tensors
        rows = slopes[0].permute(0, 1, 3, 4, 2)
        at_x = at_weight = None
        with precision_of_convolutions():
            if ctx.needs_input_grad[0]:
                at_x = image_gradient(ctx.layer, rows, matrices, ctx.size, ctx.channels_last)
            if ctx.needs_input_grad[1]:
                at_weight = rows.new_empty(matrices.shape, dtype=ctx.dtype)
                multiply(rows.flatten(1, 3).mT, patches, at_weight)
                at_weight = split_columns(at_weight, ctx.layer, ctx.channels_last).movedim(4, 2)
        return at_x, at_weight, None


def wants_channels_last(places: Sequence[int], out: int) -> bool:
    """Whether channels come last in patches and weights: if patches are more than weights."""
    return prod(places) > out


def patch_views(layer: nn.Conv2d, x: Images) -> Tensor:
    """A view (n, examples, rows, columns, channels, down, across) of the images."""
    images = x.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    views = patches_of(layer, images)
    return views.view(*x.shape[:2], *views.shape[1:]).movedim(2, 4)


def patch_rows(views: Tensor, channels_last: bool) -> Patches:
    views = views.movedim(4, 6) if channels_last else views
    return contiguous_copy(views).flatten(4).flatten(1, 3)


def contiguous_copy(x: Tensor) -> Tensor:
    """x.contiguous(), in words where they fit: else a GPU moves one number at a time."""
    length = WORD // x.element_size()
    steps = (x.shape[-1], x.storage_offset(), *x.stride()[:-1])
    if x.stride(-1) == 1 and not any(step % length for step in steps):
        return x.view(torch.complex128).contiguous().view(x.dtype)
    return x.contiguous()


def weight_matrices(weight: Tensor, dtype: torch.dtype, channels_last: bool) -> Matrices:
    weight = weight.movedim(2, 4) if channels_last else weight
    return weight.to(dtype, memory_format=torch.contiguous_format).flatten(2)


def split_columns(x: Tensor, layer: nn.Conv2d, channels_last: bool) -> Tensor:
    """With (down, across, channels) in place of the last dimension."""
    if channels_last:
        return x.view(*x.shape[:-1], *layer.kernel_size, -1)
    return x.view(*x.shape[:-1], -1, *layer.kernel_size).movedim(-3, -1)


def image_gradient(
    layer: nn.Conv2d, rows: Tensor, matrices: Matrices, size: tuple[int, int], channels_last: bool
) -> Images:
    """Slopes at all patches, summed where patches overlap."""
    high, wide = (
        layer.dilation[dim] * (layer.kernel_size[dim] - 1) - int(layer.padding[dim])
        for dim in range(2)
    )
    is_dense = layer.stride == (1, 1) and high >= 0 and wide >= 0
    if is_dense and (high or wide):
        rows = functional.pad(rows, (0, 0, wide, wide, high, high))
    patches = torch.bmm(rows.flatten(1, 3), matrices)
    pieces = split_columns(patches.view(*rows.shape[:4], -1), layer, channels_last)
    found = sum_dense(layer, pieces, size) if is_dense else sum_strided(layer, pieces, size)
    return found.permute(0, 1, 4, 2, 3)


def sum_dense(layer: nn.Conv2d, pieces: Tensor, size: tuple[int, int]) -> Tensor:
    """With patches wherever they touch the image: one sum over a view.

    Row y of the image is row i of the patches y + (down - 1 - i) * dilation. With i counted from
    the last row on, what belongs together lies at equal distances in memory.
    """
    strides, kernel = pieces.stride(), layer.kernel_size
    steps = [layer.dilation[dim] * strides[2 + dim] - strides[4 + dim] for dim in range(2)]
    start = sum((kernel[dim] - 1) * strides[4 + dim] for dim in range(2))
    shape = (*pieces.shape[:2], *size, *kernel, pieces.shape[6])
    views = pieces.as_strided(shape, (*strides[:4], *steps, strides[6]), start)
    return views[..., 0, 0, :] if kernel == (1, 1) else views.sum((4, 5))


def sum_strided(layer: nn.Conv2d, pieces: Tensor, size: tuple[int, int]) -> Tensor:
    """With any stride and padding: one place inside the patches after another."""
    n, m, rows, columns, down, across, channels = pieces.shape
    high, wide = (int(pad) for pad in layer.padding)
    whole = (n, m, size[0] + 2 * high, size[1] + 2 * wide, channels)
    found = pieces.new_zeros(whole, dtype=torch.promote_types(pieces.dtype, torch.float32))
    for i, j in product(range(down), range(across)):
        below, beside = i * layer.dilation[0], j * layer.dilation[1]
        ends = below + layer.stride[0] * rows, beside + layer.stride[1] * columns
        seen = found[:, :, below : ends[0] : layer.stride[0], beside : ends[1] : layer.stride[1]]
        seen += pieces[..., i, j, :]
    return found[:, :, high : high + size[0], wide : wide + size[1]].to(pieces.dtype)
