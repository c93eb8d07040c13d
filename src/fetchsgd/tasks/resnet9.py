"""ResNet9 without batch norm, for images of 32x32 pixels in bytes (appendix A.1).

David Page's network for DAWNBench. Batch norm is left out, since it fails on clients that hold a
few images of a single class.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from fetchsgd.tasks.pooling import pooled

# Keeps the outputs small at the start, as Page does, in place of a last batch norm.
OUTPUT_SCALE = 0.125


class ResNet9(nn.Module):
    """6,568,640 weights for 10 classes.

    `mean` and `std` of the three channels belong to the data, on the scale of bytes. They are
    buffers: they move with the model, and no method sees them.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, classes: int, mean: tuple[float, float, float], std: tuple[float, float, float]
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)
        self.first = convolution(3, 64)
        self.second = convolution(64, 128)
        self.residual_second = Residual(128)
        self.third = convolution(128, 256)
        self.fourth = convolution(256, 512)
        self.residual_fourth = Residual(512)
        self.last = nn.Linear(512, classes, bias=False)

    def forward(self, images: UInt8[Tensor, "n 3 32 32"]) -> Float[Tensor, "n classes"]:
        # Normalised here and not when the data is read: bytes are a quarter of the floats, in the
        # memory of the device and in each round's gather.
        x = (images.float() - self.mean) / self.std
        x = relu(self.first(x))
        x = pooled(self.second(x))
        x = self.residual_second(x)
        x = pooled(self.third(x))
        x = pooled(self.fourth(x))
        x = self.residual_fourth(x)
        scores: Tensor = self.last(max_pool2d(x, 4).flatten(1))
        return OUTPUT_SCALE * scores


class Residual(nn.Module):
    """x + f(x), with two convolutions in f."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = convolution(channels, channels)
        self.second = convolution(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + relu(self.second(relu(self.first(x))))


def convolution(channels: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(channels, outputs, 3, padding=1, bias=False)
