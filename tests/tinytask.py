"""A task small enough to check by hand: clients of unequal size and a network of 75 weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from fetchsgd.randomness import numpy_generator
from fetchsgd.tasks import ClientData, Task, cross_entropy, is_correct

PRESET = {
    "train": {"epochs": 3.0, "clients_per_round": 4},
    "schedule": {"kind": "constant", "peak": 0.1},
    "methods": {
        "fetchsgd": {"k": 20, "cols": 40},
        "true_topk": {"k": 20},
        "local_topk": {"k": 20},
        "fedavg": {"local": {"epochs": 1}},
    },
}


def tiny(seed: int = 0, clients: int = 12, empty_client: bool = False) -> Task:
    generator = numpy_generator(seed, "split")
    sizes = generator.integers(1, 7, clients)
    if empty_client:
        sizes[3] = 0
    owner = np.repeat(np.arange(clients), sizes)
    labels = owner % 3
    centres = np.array([[3, 0, 0, 0, 1], [0, 3, 0, 1, 0], [0, 0, 3, 0, 0]])
    inputs = centres[labels] + generator.standard_normal((len(owner), 5))
    x, y = torch.from_numpy(inputs).float(), torch.from_numpy(labels)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Task(
        name="tiny",
        train=ClientData(x, y, offsets),
        test_inputs=x[:20],
        test_targets=y[:20],
        model=lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)),
        loss=cross_entropy,
        quality=is_correct,
        preset=PRESET,
    )


def misspelt(seed: int = 0) -> Task:
    """Its preset has a mistake."""
    return replace(tiny(seed), preset={"methods": {"uncompressed": {"download": {"stepp": 1.0}}}})
