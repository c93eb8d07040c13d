"""Algorithm 1 of the paper by hand, line by line, on the bundled digits.

    python examples/algorithm1.py

No part of the library but the sketch: what `fetchsgd train digits` does, in a page. The two
departures from the pseudocode are the paper's own (section 5): line 14 clears the cells of what was
sent instead of subtracting, and the same cells of the momentum are cleared.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from fetchsgd import CountSketch

ROUNDS, CLIENTS_PER_ROUND, EXAMPLES = 150, 20, 5
K, COLS, RHO, PEAK = 2000, 8000, 0.9, 0.05


def make_clients(labels: torch.Tensor) -> list[torch.Tensor]:
    """Five images of a single digit each."""
    clients = []
    for digit in range(10):
        members = (labels == digit).nonzero().squeeze(1)
        clients += list(members[: len(members) // EXAMPLES * EXAMPLES].split(EXAMPLES))
    return clients


def main() -> None:
    pixels, targets = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels.astype(np.float32) / 8 - 1).view(-1, 1, 8, 8)
    labels = torch.from_numpy(targets)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    test_images, test_labels, images, labels = (
        images[:599],
        labels[:599],
        images[599:],
        labels[599:],
    )
    clients = make_clients(labels)

    torch.manual_seed(0)  # line 2: the same seed everywhere gives the same initial weights
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    parameters = list(model.parameters())
    weights = nn.utils.parameters_to_vector(parameters).detach()

    sketch = CountSketch(len(weights), rows=1, cols=COLS)
    momentum, error = sketch.zeros(), sketch.zeros()  # line 1
    draw = np.random.default_rng(0)
    for t in range(ROUNDS):  # line 3
        rate = PEAK * min((t + 1) / 30, (ROUNDS - t) / 120)
        merged = sketch.zeros()
        for client in draw.choice(len(clients), CLIENTS_PER_ROUND, replace=False):  # lines 4, 5
            nn.utils.vector_to_parameters(weights, parameters)  # line 6
            batch = clients[client]
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            gradient = torch.autograd.grad(loss, parameters)  # line 7
            merged += sketch.sketch(list(gradient)) / CLIENTS_PER_ROUND  # lines 8, 10
        momentum = RHO * momentum + merged  # line 11
        error = error + rate * momentum  # line 12
        update = sketch.top_k(error, K)  # line 13
        sent = sketch.sketch(update) != 0  # line 14
        error[sent] = 0
        momentum[sent] = 0
        weights[update.indices] -= update.values  # line 15
        if (t + 1) % 30 == 0:
            nn.utils.vector_to_parameters(weights, parameters)
            with torch.no_grad():
                right = (model(test_images).argmax(dim=1) == test_labels).float().mean()
            print(f"round {t + 1}: test accuracy {right:.3f}, loss of the last client {loss:.3f}")


if __name__ == "__main__":
    main()
