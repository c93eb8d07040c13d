"""A loop of your own: any model, clients that you hold, and nothing but bytes between them.

    python examples/own_loop.py

Twenty clients with a few images each. Half of them are away in the first half of the training, one
joins in the last round, and one loses all that it had kept.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import fetchsgd as fs

CLIENTS, ROUNDS = 20, 24


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def main() -> None:
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(pixels.astype(np.float32) / 8 - 1), torch.from_numpy(digits)
    data = list(zip(images[500:].split(65), labels[500:].split(65), strict=True))

    plan = fs.Plan(
        make_model,
        "uncompressed",
        rounds=ROUNDS,
        schedule={"kind": "linear", "peak": 0.2},
        quantiser=fs.SharedStep(density=0.03),
        download={"grid": "steps", "step": 0.5},
    )
    server = fs.Server(plan)
    states: dict[int, fs.ClientState | None] = {}
    asked = 0
    for round in range(ROUNDS):
        present = range(10) if round < ROUNDS // 2 else range(CLIENTS - 1)
        for client in [*present, CLIENTS - 1] if round == ROUNDS - 1 else present:
            if (round, client) == (18, 3):
                states[client] = None  # it has lost what it held, and says so
            request: bytes | None = server.request(client)
            while request is not None:
                reply, states[client] = fs.client_update(
                    request, plan, loss, data[client], states.get(client)
                )
                request = server.receive(reply)
        done = server.step()
        asked += len(done.clients)
        if server.round % 6 == 0:
            print(f"round {server.round}: {len(done.clients)} clients, loss {done.loss:.3f}")

    with torch.no_grad():
        right = server.model()(images[:500]).argmax(dim=1) == labels[:500]
    up, down = server.traffic.messages
    whole = 4 * plan.dim * asked
    print(f"test accuracy {right.float().mean():.3f}")
    print(f"{whole / up:.1f}x less up and {whole / down:.1f}x less down than whole models")


if __name__ == "__main__":
    main()
