"""A task of your own: a function that returns data, model and loss, in under 60 lines.

    cd examples && fetchsgd train custom_task:sensors --method fetchsgd --set cols=1000

Forty sensors, each in a different place, learn together to predict a reading from twenty channels.
Options of the task are the arguments of the function; `--set task.noise=0.2` changes one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fetchsgd.randomness import numpy_generator
from fetchsgd.tasks import ClientData, Task

CHANNELS = 20


def sensors(seed: int = 0, clients: int = 40, noise: float = 0.1) -> Task:
    generator = numpy_generator(seed, "split")
    truth = generator.standard_normal(CHANNELS)
    # Sensors differ in size, and each sees its own part of the world.
    client_of = generator.integers(0, clients, 50 * clients)
    places = generator.standard_normal((clients, CHANNELS))
    signals = places[client_of] + generator.standard_normal((len(client_of), CHANNELS))
    readings = signals @ truth + noise * generator.standard_normal(len(client_of))
    inputs, targets = torch.from_numpy(signals).float(), torch.from_numpy(readings).float()
    held_out = len(inputs) // 5
    return Task(
        name="sensors",
        train=ClientData.from_groups(inputs[held_out:], targets[held_out:], client_of[held_out:]),
        test_inputs=inputs[:held_out],
        test_targets=targets[:held_out],
        model=lambda: nn.Sequential(nn.Linear(CHANNELS, 100), nn.ReLU(), nn.Linear(100, 1)),
        loss=squared_error,
        quality=squared_error,
        metric="squared_error",
        higher_is_better=False,
        preset={
            "train": {"epochs": 40.0, "clients_per_round": 10, "eval_every": 5.0},
            "schedule": {"kind": "linear", "peak": 0.005},
        },
    )


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(1) - targets).square()
