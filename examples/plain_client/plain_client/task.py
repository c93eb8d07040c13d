"""The same task for fetchsgd: what the server trains, and clients that run fetchsgd.

The model is linear, and the loss the squared distance to a vector with 1 at the right kind and 0
elsewhere. Pixels are -1 and 1 and weights whole multiples of 1/128, so every sum in the gradient is
exact in float32: torch and numpy find the same bits, in whatever order they add. (While weights
stay below 4: a score is then below 260, and a sum of 64 of them below 2^24 of their last bits.)
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fetchsgd.tasks import ClientData, Task, is_correct
from plain_client.data import KINDS, PER_CLIENT, PIXELS, TEST, examples

TESTED = 500


def patterns(seed: int = 0, clients: int = 4) -> Task:
    parts = [examples(client, seed=seed) for client in range(clients)]
    pixels, kinds = (np.concatenate(part) for part in zip(*parts, strict=True))
    test_pixels, test_kinds = examples(TEST, TESTED, seed)
    return Task(
        name="patterns",
        train=ClientData(
            torch.from_numpy(pixels), torch.from_numpy(kinds), PER_CLIENT * np.arange(clients + 1)
        ),
        test_inputs=torch.from_numpy(test_pixels),
        test_targets=torch.from_numpy(test_kinds),
        model=linear,
        loss=squared,
        quality=is_correct,
    )


def linear() -> nn.Module:
    """Weights of 1/8 and -1/8 by turns, whose standard deviation is just 1/8; no bias at first."""
    layer = nn.Linear(PIXELS, KINDS)
    with torch.no_grad():
        turns = torch.arange(KINDS)[:, None] + torch.arange(PIXELS)
        layer.weight.copy_(0.125 - 0.25 * (turns % 2))
        layer.bias.zero_()
    return layer


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    wanted = nn.functional.one_hot(targets, KINDS).float()
    return 0.5 * (outputs - wanted).square().sum(dim=1)
