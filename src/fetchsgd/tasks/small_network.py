"""A network of some 30,000 weights for images of 32x32 pixels, where ResNet9 has 6.6 million.

For differential privacy: its noise grows with the number of weights (docs/privacy.md).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn


class SmallNetwork(nn.Module):
    """Two convolutions and a linear layer: 31,178 weights with 32 channels and 10 classes.

    `mean` and `std` of the three colours belong to the data, as in resnet9.py.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        classes: int,
        channels: int,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)
        self.layers = nn.Sequential(
            nn.Conv2d(3, channels, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(4),
            nn.Flatten(),
            nn.Linear(2 * channels * 4 * 4, classes),
        )

    def forward(self, images: UInt8[Tensor, "n 3 32 32"]) -> Float[Tensor, "n classes"]:
        scores: Tensor = self.layers((images.float() - self.mean) / self.std)
        return scores
