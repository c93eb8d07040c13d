"""relu(max_pool2d(x, 2)), in one pass over memory each way where a GPU can do it.

For each output one byte is kept: which of its window's four places, row by row, it was taken from,
or NONE if relu made it zero. The backward pass needs no more. torch would keep eight bytes of
indices, and go through the outputs another time for relu, forward and backward.
"""

from __future__ import annotations

import importlib.util
import os
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import max_pool2d, pixel_shuffle, relu

from fetchsgd.launch import launch
from fetchsgd.vmap_dims import folded, unfolded

NONE = 4
# The 32-bit floats of the programs hold these exactly.
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Outputs of one program.
TILE = 1024

Image = Float[Tensor, "n channels height width"]
Halved = Float[Tensor, "n channels rows columns"]
Choices = UInt8[Tensor, "n channels rows columns"]


def pooled(x: Tensor) -> Tensor:
    """max_pool2d(relu(x), 2): the two commute, and relu comes second to have less work.

    On a GPU it has no second derivative if x is channels_last and of even height and width.
    """
    if x.is_cuda and x.dtype in DTYPES and has_windows(x) and programs_for(x):
        apply: Any = Pooling.apply
        y: Tensor = apply(x)[0]
        return y
    return relu(max_pool2d(x, 2))


class Pooling(torch.autograd.Function):
    """From an image to its pooled image and the choices."""

    @staticmethod
    def forward(x: Image) -> tuple[Halved, Choices]:
        return pool(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Image], output: tuple[Halved, Choices]) -> None:  # noqa: ARG004
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # else zeros are written as the slopes of the choices
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *slopes: Halved | None) -> Image | None:
        if slopes[0] is None:
            return None
        apply: Any = Unpooling.apply
        unpooled: Tensor = apply(slopes[0], *ctx.saved_tensors)
        return unpooled

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None], x: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        apply: Any = Pooling.apply
        n = info.batch_size
        y, choices = apply(folded(x, in_dims[0], n))
        return (unfolded(y, n), unfolded(choices, n)), (0, 0)


class Unpooling(torch.autograd.Function):
    """From slopes at the pooled image to slopes at the image."""

    @staticmethod
    def forward(slopes: Halved, choices: Choices) -> Image:
        return unpool(slopes, choices)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Halved, Choices], output: Image) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *slopes: Image) -> Tensor:
        raise NotImplementedError("pooled() has no second derivative; use relu(max_pool2d(x, 2))")

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None], slopes: Tensor, choices: Tensor
    ) -> tuple[Tensor, int]:
        n = info.batch_size
        apply: Any = Unpooling.apply
        unpooled: Tensor = apply(folded(slopes, in_dims[0], n), folded(choices, in_dims[1], n))
        return unfolded(unpooled, n), 0


def pool(x: Image) -> tuple[Halved, Choices]:
    programs = programs_for(x)
    if programs is None:
        return pool_plainly(x)
    n, channels, height, width = x.shape
    shape = (n, channels, height // 2, width // 2)
    y, choices = empty(shape, x.dtype, x.device), empty(shape, torch.uint8, x.device)
    launch_over_windows(programs.pool_windows, choices, y, choices, x, NONE=NONE)
    return y, choices


def unpool(slopes: Halved, choices: Choices) -> Image:
    programs = programs_for(choices)
    if programs is None:
        return unpool_plainly(slopes, choices)
    # They may be in any order, or one number seen in all places, as those of a sum are.
    slopes = slopes.contiguous(memory_format=torch.channels_last)
    n, channels, rows, columns = choices.shape
    unpooled = empty((n, channels, 2 * rows, 2 * columns), slopes.dtype, slopes.device)
    launch_over_windows(programs.unpool_windows, choices, unpooled, slopes, choices)
    return unpooled


def pool_plainly(x: Image) -> tuple[Halved, Choices]:
    """The definition of `pool`, in plain torch."""
    y, indices = max_pool2d(x, 2, return_indices=True)  # of an even width
    place = indices // x.shape[3] % 2 * 2 + indices % 2
    return relu(y), torch.where(y <= 0, NONE, place).to(torch.uint8)


def unpool_plainly(slopes: Halved, choices: Choices) -> Image:
    """The definition of `unpool`, in plain torch."""
    parts = [torch.where(choices == place, slopes, 0) for place in range(4)]
    return pixel_shuffle(torch.stack(parts, dim=2).flatten(1, 2), 2)


def programs_for(x: Tensor) -> ModuleType | None:
    """pooling_programs.py, if it can run where x is and x is laid out as it wants."""
    # Within a row places are counted in 32 bits. Rows are counted in 64.
    is_short = 4 * x.shape[1] * x.shape[3] < 1 << 31
    return programs_on(x.device.type) if is_short and is_channels_last(x) else None


@lru_cache
def programs_on(device_type: str) -> ModuleType | None:
    is_interpreted = device_type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if (device_type == "cuda" or is_interpreted) and importlib.util.find_spec("triton"):
        # Imported here because triton takes longer to import than the rest of the package.
        from fetchsgd.tasks import pooling_programs

        return pooling_programs
    return None


def has_windows(x: Tensor) -> bool:
    """Whether x is a batch of images that fall into windows with nothing left over."""
    return x.ndim == 4 and x.numel() > 0 and x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0


def is_channels_last(x: Tensor) -> bool:
    """Read off the strides: vmap does not answer x.is_contiguous(memory_format=...)."""
    expected = 1
    for dim in (1, 3, 2, 0):
        if x.shape[dim] != 1 and x.stride(dim) != expected:
            return False
        expected *= x.shape[dim]
    return True


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device, memory_format=torch.channels_last)


def launch_over_windows(program: Any, windows: Tensor, *tensors: Tensor, **constants: int) -> None:
    """Run a program over as many tiles as hold all windows."""
    n, channels, rows, columns = windows.shape
    line = columns * channels
    span = min(TILE, 1 << (line - 1).bit_length())
    rows_at_once = TILE // span
    tiles = -(-line // span)
    grid = (-(-n * rows // rows_at_once) * tiles,)
    launch(
        program, grid, *tensors, n * rows, line, tiles,
        CHANNELS=channels, ROWS=rows_at_once, SPAN=span, **constants,
    )  # fmt: skip
