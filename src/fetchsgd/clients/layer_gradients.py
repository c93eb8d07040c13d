"""What each client adds to the gradient of one layer's weights.

The gradient of a layer's weights is a product of what went into the layer and of the slopes of the
loss at what came out, summed over examples. An ordinary backward pass has both at hand; here the
sum runs over the examples of each client alone, as a batched product that is written where the
client's gradient belongs. One function a kind of layer, in LAYERS.

Examples come client after client, equally many of each: `weight` and `bias`, the results, say how
many clients there are by their first dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

# Memory for the patches of images that a convolution sees. On a CPU few enough to stay in cache.
PATCH_BYTES = {"cpu": 1 << 22, "cuda": 1 << 30}


def linear(
    layer: nn.Linear,  # noqa: ARG001 (all kinds are called alike)
    inputs: Float[Tensor, "examples *more into"],
    slopes: Float[Tensor, "examples *more out"],
    weight: Float[Tensor, "n out into"],
    bias: Float[Tensor, "n out"] | None,
) -> None:
    n = len(weight)
    slopes = slopes.reshape(n, -1, slopes.shape[-1])
    rows = inputs.to(slopes.dtype).reshape(n, -1, inputs.shape[-1])
    multiply(slopes.mT, rows, weight)
    if bias is not None:
        torch.sum(slopes, dim=1, dtype=bias.dtype, out=bias)


def convolution(
    layer: nn.Conv2d,
    inputs: Float[Tensor, "examples into height width"],
    slopes: Float[Tensor, "examples out rows columns"],
    weight: Float[Tensor, "n out into down across"],
    bias: Float[Tensor, "n out"] | None,
) -> None:
    """A convolution is a linear layer over patches of the image.

    Places in the image come last on both sides: so the copies read and write runs of memory, and
    products on tensor cores want it that way.
    """
    n = len(weight)
    slopes = slopes.view(n, -1, *slopes.shape[1:]).transpose(1, 2).flatten(2)  # (n, out, places)
    patches = patches_of(layer, inputs.to(slopes.dtype).contiguous())
    patches = patches.view(n, -1, *patches.shape[1:]).permute(0, 2, 5, 6, 1, 3, 4)
    each = patches[0].numel() * patches.element_size()
    step = min(max(PATCH_BYTES[inputs.device.type] // each, 1), n)
    buffer = patches.new_empty(step, *patches.shape[1:])
    with precision_of_convolutions():
        for start in range(0, n, step):
            part = slice(start, start + step)
            copied = buffer[: n - start].copy_(patches[part])
            columns = copied.flatten(4).flatten(1, 3)  # (n, into * down * across, places)
            multiply(slopes[part], columns.mT, weight[part].flatten(2))
    if bias is not None:
        torch.sum(slopes, dim=2, dtype=bias.dtype, out=bias)


def embedding(
    layer: nn.Embedding,
    inputs: Tensor,  # (examples, ...) integers
    slopes: Float[Tensor, "examples *more width"],
    weight: Float[Tensor, "n words width"],
    bias: None,  # noqa: ARG001
) -> None:
    n = len(weight)
    words = inputs.reshape(n, -1)
    slopes = slopes.reshape(n, -1, slopes.shape[-1]).to(weight.dtype)
    if layer.padding_idx is not None:
        slopes = slopes * (words != layer.padding_idx)[:, :, None]
    clients = torch.arange(n, device=words.device)[:, None].expand_as(words)
    weight.zero_().index_put_((clients, words), slopes, accumulate=True)


def layer_norm(
    layer: nn.LayerNorm,
    inputs: Float[Tensor, "examples *more width"],
    slopes: Float[Tensor, "examples *more width"],
    weight: Tensor,  # (n, ..., width), as many dimensions as are normalised together
    bias: Tensor | None,
) -> None:
    n, shape = len(weight), layer.normalized_shape
    slopes = slopes.to(weight.dtype)
    normal = functional.layer_norm(inputs.to(weight.dtype), shape, eps=layer.eps)
    torch.sum((slopes * normal).reshape(n, -1, *shape), dim=1, out=weight)
    if bias is not None:
        torch.sum(slopes.reshape(n, -1, *shape), dim=1, out=bias)


def group_norm(
    layer: nn.GroupNorm,
    inputs: Float[Tensor, "examples channels *more"],
    slopes: Float[Tensor, "examples channels *more"],
    weight: Float[Tensor, "n channels"],
    bias: Float[Tensor, "n channels"] | None,
) -> None:
    n, channels = weight.shape
    slopes = slopes.to(weight.dtype)
    normal = functional.group_norm(inputs.to(weight.dtype), layer.num_groups, eps=layer.eps)
    torch.sum((slopes * normal).reshape(n, -1, channels, normal[0, 0].numel()), (1, 3), out=weight)
    if bias is not None:
        torch.sum(slopes.reshape(n, -1, channels, normal[0, 0].numel()), dim=(1, 3), out=bias)


def multiply(
    left: Float[Tensor, "n out k"], right: Float[Tensor, "n k into"], product: Tensor
) -> None:
    """The product of each client, written in place; that of 16-bit floats is kept in 32 bits."""
    if left.dtype == product.dtype:
        torch.bmm(left, right, out=product)
    elif left.is_cuda and hasattr(torch.ops.aten.bmm, "dtype_out"):
        torch.ops.aten.bmm.dtype_out(left, right, product.dtype, out=product)
    else:
        product.copy_(torch.bmm(left, right))


def patches_of(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """A view (examples, into, rows, columns, down, across) of the images inside their padding."""
    assert not isinstance(layer.padding, str)
    high, wide = layer.padding
    views = functional.pad(images, (wide, wide, high, high)) if high or wide else images
    for dim in range(2):
        reach = layer.dilation[dim] * (layer.kernel_size[dim] - 1) + 1
        views = views.unfold(2 + dim, reach, layer.stride[dim])[..., :: layer.dilation[dim]]
    return views


@contextmanager
def precision_of_convolutions() -> Iterator[None]:
    """float32 is multiplied as the user lets convolutions do it; torch's default is TF32."""
    cudnn: Any = torch.backends.cudnn
    with precision(matmul=getattr(cudnn.conv, "fp32_precision", None)):
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """float32 is multiplied as float32."""
    with precision(matmul="ieee", convolution="ieee"):
        yield


@contextmanager
def precision(matmul: str | None = None, convolution: str | None = None) -> Iterator[None]:
    """How GPUs multiply float32 while this lasts; None leaves it as it is."""
    backends: Any = torch.backends
    wanted = [(backends.cuda.matmul, matmul), (backends.cudnn.conv, convolution)]
    # torch before 2.9 does not have it.
    changes = [(part, how) for part, how in wanted if how and hasattr(part, "fp32_precision")]
    before = [part.fp32_precision for part, _ in changes]
    try:
        for part, how in changes:
            part.fp32_precision = how
        yield
    finally:
        for (part, _), how in zip(changes, before, strict=True):
            part.fp32_precision = how


LayerGradient = Callable[[Any, Tensor, Tensor, Tensor, Any], None]
LAYERS: dict[type[nn.Module], LayerGradient] = {
    nn.Linear: linear,
    nn.Conv2d: convolution,
    nn.Embedding: embedding,
    nn.LayerNorm: layer_norm,
    nn.GroupNorm: group_norm,
}


def gradient_of(layer: nn.Module) -> LayerGradient | None:
    """The function for this kind of layer.

    A subclass may compute something else, so it has none, unless it says which layer's it is.
    """
    return LAYERS.get(getattr(layer, "same_gradients_as", type(layer)))


def is_known(layer: nn.Module) -> bool:
    """Whether LAYERS holds for this layer with the options that it has."""
    own = {name for name, _ in layer.named_parameters(recurse=False)}
    # Nor layers whose weights follow from others.
    if gradient_of(layer) is None or not own <= {"weight", "bias"}:
        return False
    if isinstance(layer, nn.Conv2d):
        plain = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return plain and layer.groups == 1
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    return True
