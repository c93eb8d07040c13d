"""The tiny task with a model of which one layer is frozen and one is not used."""

from __future__ import annotations

from dataclasses import replace

from tinytask import tiny
from torch import nn

UNUSED, TRAINED = 12, 27  # weights; 48 more are frozen


class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(5, 8).requires_grad_(False)
        self.unused = nn.Linear(5, 2)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.frozen(x).tanh())


def task(seed: int = 0):
    return replace(tiny(seed), name="partly", model=Partly)


def normed(seed: int = 0):
    """A model that is refused."""
    layers = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
    return replace(tiny(seed), name="normed", model=lambda: nn.Sequential(*layers))
