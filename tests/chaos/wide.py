"""A task with as many clients as are asked for and a quarter of a million weights."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fetchsgd.tasks import ClientData, Task, cross_entropy, is_correct

PRESET = {
    "train": {"epochs": 3.0, "clients_per_round": 100},
    "schedule": {"kind": "constant", "peak": 0.001},
    "methods": {"fetchsgd": {"k": 1000, "cols": 52429, "rows": 5}},
}


def wide(seed: int = 0, clients: int = 100) -> Task:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(clients, 16, generator=generator)
    labels = torch.arange(clients) % 4
    return Task(
        name="wide",
        train=ClientData(inputs, labels, np.arange(clients + 1)),
        test_inputs=inputs[:20],
        test_targets=labels[:20],
        model=lambda: nn.Sequential(nn.Linear(16, 12500), nn.Tanh(), nn.Linear(12500, 4)),
        loss=cross_entropy,
        quality=is_correct,
        preset=PRESET,
    )
