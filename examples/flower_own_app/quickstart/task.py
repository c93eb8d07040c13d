"""The model, its data, and how a client trains it: nothing here knows Flower or FetchSGD."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TEST = 360  # images


class Net(nn.Module):
    """Two layers for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 128)
        self.out = nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(images)))


def load_data(part: int, parts: int) -> tuple[DataLoader, DataLoader]:
    """The training images of one client of so many, and the test images of all."""
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(pixels.astype(np.float32) / 8 - 1), torch.from_numpy(digits)
    own = slice(TEST + part, None, parts)
    train = TensorDataset(images[own], labels[own])
    test = TensorDataset(images[:TEST], labels[:TEST])
    return DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=TEST)


def train(net: nn.Module, loader: DataLoader, epochs: int, rate: float) -> float:
    """Train the model where it is; the mean loss of all batches."""
    optimiser = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    losses = []
    for _ in range(epochs):
        for images, labels in loader:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(net: nn.Module, loader: DataLoader) -> float:
    """The share of test images that the model gets right."""
    right = [(net(images).argmax(dim=1) == labels).float().mean() for images, labels in loader]
    return float(torch.stack(right).mean())
