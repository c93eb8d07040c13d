"""The digits with a network of more than a megabyte, dealt out to a few clients."""

from __future__ import annotations

import dataclasses

import numpy as np
from torch import nn

from fetchsgd.randomness import numpy_generator
from fetchsgd.tasks import ClientData, Task
from fetchsgd.tasks.digits import digits
from fetchsgd.tasks.splits import Split

WIDTH = 4224


def wide_digits(seed: int = 0, clients: int = 4, alpha: float = 10.0) -> Task:
    """Clients of equal size whose classes are Dirichlet mixtures; 316,810 weights, 1.27 MB."""
    task = digits(seed)
    images, labels = task.train.inputs, task.train.targets
    size = -(-len(labels) // clients)
    deal = Split("dirichlet", size, alpha, "equal", exponent=1.5, most=len(labels))
    owner = deal.clients(labels.numpy().astype(np.int64), numpy_generator(seed, "split", 2))
    return dataclasses.replace(
        task,
        name="wide_digits",
        train=ClientData.from_groups(images, labels, owner),
        model=network,
        preset={},
    )


def network() -> nn.Module:
    """One hidden layer, so wide that even plain gradient descent is quick."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, 10),
    )
