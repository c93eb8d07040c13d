"""ResNet101 with layer norm instead of batch norm, for images of 28x28 grey bytes (appendix A.2).

Batch norm would mix the examples of a client, and those of different clients. Layer norm takes mean
and deviation over all channels and places of one example: GroupNorm with a single group.

The usual ResNet101 expects 224x224 pixels and halves them twice before its first block, by a 7x7
convolution and by pooling. Here a 3x3 convolution keeps the size and pooling halves it once, so
that the four stages see 14x14, 7x7, 4x4 and 2x2 places.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.functional import layer_norm, relu

from fetchsgd.tasks.augment import WHITE
from fetchsgd.tasks.pooling import pooled

BLOCKS = (3, 4, 23, 3)
EXPANSION = 4  # a block has four times as many channels outside as inside
# With 1, 33 blocks add up to so much that training is close to diverging at the paper's rate.
# With 0, as is usual, nothing in a block learns before its gain has grown, and a single epoch at
# rates up to 0.01 is too short for that.
BRANCH_GAIN = 0.3


class ResNet101(nn.Module):
    """42,618,366 weights for 62 classes, 42,511,818 for 10."""

    def __init__(self, classes: int, width: int = 64) -> None:
        super().__init__()
        self.stem = convolution(1, width, 3)
        self.stem_norm = LayerNorm(width)
        stages, channels = [], width
        for stage, blocks in enumerate(BLOCKS):
            inner = width << stage
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                stages.append(Bottleneck(channels, inner, stride))
                channels = EXPANSION * inner
        self.blocks = nn.Sequential(*stages)
        self.last = nn.Linear(channels, classes)

    def forward(self, images: UInt8[Tensor, "n *one 28 28"]) -> Float[Tensor, "n classes"]:
        # Paper becomes 0, which is what convolutions take to lie beyond the edges. The scale does
        # not matter: the first norm takes it out.
        ink = 1 - images.float() / WHITE
        x = ink if ink.ndim == 4 else ink.unsqueeze(1)
        x = pooled(self.stem_norm(self.stem(x)))
        x = self.blocks(x)
        scores: Tensor = self.last(x.mean(dim=(2, 3)))
        return scores


class Bottleneck(nn.Module):
    """relu(x + f(x)), with convolutions of 1x1, 3x3 and 1x1 in f; where sizes differ, x is mapped.

    f's last norm starts with a gain of BRANCH_GAIN.
    """

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        outer = EXPANSION * inner
        self.first, self.first_norm = convolution(channels, inner, 1), LayerNorm(inner)
        self.second, self.second_norm = convolution(inner, inner, 3, stride), LayerNorm(inner)
        self.third, self.third_norm = convolution(inner, outer, 1), LayerNorm(outer)
        nn.init.constant_(self.third_norm.weight, BRANCH_GAIN)
        mapped = [convolution(channels, outer, 1, stride), LayerNorm(outer)]
        self.shortcut = nn.Sequential(*(mapped if channels != outer else []))

    def forward(self, x: Tensor) -> Tensor:
        inside = relu(self.first_norm(self.first(x)))
        inside = relu(self.second_norm(self.second(inside)))
        return relu(self.shortcut(x) + self.third_norm(self.third(inside)))


def convolution(channels: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Without a bias, since a norm follows; with He's weights, for the relu behind it."""
    layer = nn.Conv2d(channels, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


class LayerNorm(nn.GroupNorm):
    """Over channels and places, with a gain and a shift for each channel."""

    same_gradients_as = nn.GroupNorm  # clients' own gradients are computed as for that layer

    def __init__(self, channels: int) -> None:
        super().__init__(1, channels)

    def forward(self, x: Float[Tensor, "n channels height width"]) -> Tensor:
        if not x.is_cuda:
            return super().forward(x)
        # torch's own would turn the layout in which GPUs convolve into another, and be slower.
        places = x.permute(0, 2, 3, 1)
        normal = layer_norm(places, places.shape[1:], eps=self.eps)
        return torch.addcmul(self.bias, normal, self.weight).permute(0, 3, 1, 2)
