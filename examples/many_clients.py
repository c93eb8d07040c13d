"""Ten million clients on a laptop: a rule says which examples each client has, and no list does.

    cd examples && fetchsgd train many_clients:crowd --method fetchsgd --set cols=500

Each client holds a few of scikit-learn's digits, all of one kind, found by the client's number.
Memory follows the clients that have taken part, not those that might.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fetchsgd.randomness import numpy_generator
from fetchsgd.tasks import Task, cross_entropy, from_rule, is_correct
from fetchsgd.tasks.digits import read_digits

KINDS = 10


def crowd(seed: int = 0, clients: int = 10_000_000, each: int = 4) -> Task:
    pixels, labels = read_digits()
    inputs, targets = torch.from_numpy(pixels / 8 - 1), torch.from_numpy(labels)
    order = numpy_generator(0, "split").permutation(len(labels))
    test, train = order[: len(order) // 3], order[len(order) // 3 :]
    by_kind = [np.flatnonzero(labels[train] == kind) for kind in range(KINDS)]
    fewest = min(map(len, by_kind))
    rows = np.stack([found[:fewest] for found in by_kind])

    def rule(client: NDArray[np.int64], place: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = rows[client % KINDS, (client * 7919 + place + seed) % fewest]
        return found

    return Task(
        name="crowd",
        train=from_rule(inputs[train], targets[train], rule, clients, each),
        test_inputs=inputs[test],
        test_targets=targets[test],
        model=lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, KINDS)),
        loss=cross_entropy,
        quality=is_correct,
        preset={
            "train": {"epochs": 0.01, "clients_per_round": 1000, "eval_every": 0.002},
            "schedule": {"kind": "constant", "peak": 0.05},
            "methods": {"fetchsgd": {"cols": 1000}},
        },
    )
