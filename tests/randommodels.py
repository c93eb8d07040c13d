"""Tasks whose models draw at random while they train, each in a different way."""

from __future__ import annotations

from dataclasses import replace

import torch
from tinytask import tiny
from torch import nn
from torch.nn import functional


class Layered(nn.Sequential):
    """torch's own dropout layers."""

    def __init__(self):
        first = nn.Linear(5, 8), nn.Dropout(0.3), nn.Tanh()
        super().__init__(*first, nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 3))


class Functional(nn.Module):
    """Dropout as a function, and noise of the model's own."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = functional.dropout(self.first(x).tanh(), 0.3, self.training)
        if self.training:
            x = x + 0.1 * torch.rand_like(x)
        return self.last(x)


class Skipping(nn.Module):
    """Stochastic depth: a layer is skipped or not for the whole batch. vmap cannot run this."""

    draws_on = "cpu"

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x).tanh()
        for _ in range(6):
            if not self.training or torch.rand((), device=self.draws_on) < 0.5:
                x = x + self.middle(x).tanh()
        return self.last(x)


class SkippingOnGPU(Skipping):
    draws_on = "cuda"


class Always(Layered):
    """It draws in eval mode, too."""

    def forward(self, x):
        return functional.dropout(super().forward(x), 0.3, training=True)


MODELS = {"layered": Layered, "functional": Functional, "skipping": Skipping, "always": Always}
ON_GPU = {"skipping_on_gpu": SkippingOnGPU}


def task(model: str = "layered", clients: int = 12, seed: int = 0):
    return replace(tiny(seed, clients), name=model, model=(MODELS | ON_GPU)[model])
