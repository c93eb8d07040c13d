"""scikit-learn's bundled 8x8 digits: 1,797 real images, no download. The default task.

Each client holds a few images of a single digit, as in the paper's CIFAR experiments. The network
has no batch norm, which fails on a few examples of a single class (appendix A.1).
"""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fetchsgd.randomness import numpy_generator
from fetchsgd.tasks.base import ClientData, Task, cross_entropy, is_correct
from fetchsgd.tasks.splits import Split

PRESET: dict[str, dict[str, Any]] = {
    "train": {"epochs": 24.0, "baseline_epochs": 24.0, "clients_per_round": 50},
    "schedule": {"kind": "triangular", "peak": 0.03, "pivot": 5.0},
    "download": {"step": 1.0},
    "methods": {
        "fetchsgd": {"cols": 8000},
        "fetchsgd-paper": {"k": 500, "cols": 8000},
        "local_topk": {"k": 500},
        "true_topk": {"k": 2000},
        "messages": {"upload": {"density": 0.005}, "download": {"step": 4.0, "by_size": True}},
        "fedavg": {"local": {"epochs": 2}},
    },
}


def digits(
    seed: int = 0,
    examples_per_client: int = 2,
    split: str = "one_class",
    alpha: float = 0.5,
    sizes: str = "equal",
    exponent: float = 1.5,
    hidden: int = 0,
) -> Task:
    """The bundled 8x8 digits: 1,797 real images, no download. The default task.

    A third of the images is for testing. splits.py says what the options mean. hidden: a network
    with one layer of so many units instead of convolutions, whose runs take a second.
    """
    if hidden < 0:
        raise ValueError(f"task.hidden must be at least 0, got {hidden}")
    dealing = Split(split, examples_per_client, alpha, sizes, exponent, most=100)
    pixels, labels = read_digits()
    images = torch.from_numpy(pixels / 8 - 1).view(-1, 1, 8, 8)
    targets = torch.from_numpy(labels)
    # The test set is the same for every seed, so that runs can be compared.
    order = numpy_generator(0, "split").permutation(len(labels))
    test, train = order[: len(order) // 3], order[len(order) // 3 :]
    generator = numpy_generator(seed, "split", 1)
    clients = dealing.clients(labels[train], generator)
    return Task(
        name="digits",
        train=ClientData.from_groups(images[train], targets[train], clients),
        test_inputs=images[test],
        test_targets=targets[test],
        model=partial(small_network, hidden) if hidden else network,
        loss=cross_entropy,
        quality=is_correct,
        preset=PRESET,
    )


def read_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Pixels from 0 to 16, 64 to an image, and which digits they are.

    scikit-learn takes seconds to load, and a client in a federation loads everything for every
    message, so its file is read without it, where it is found.
    """
    place = importlib.util.find_spec("sklearn")
    path = (
        Path(place.origin if place and place.origin else "").parent / "datasets/data/digits.csv.gz"
    )
    if path.exists():
        columns = np.loadtxt(path, delimiter=",", dtype=np.int64)
        pixels, labels = columns[:, :-1], columns[:, -1]
    else:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
    return pixels.astype(np.float32), labels.astype(np.int64)


def network() -> nn.Module:
    """Two convolutions and a linear layer: 85,066 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def small_network(hidden: int) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
