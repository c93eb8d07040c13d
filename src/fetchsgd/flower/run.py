"""The simulator's `Run` for a federation, whose clients need not all be in the task's data."""

from __future__ import annotations

import hashlib
import json
import zlib

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.runs.settings import Config
from fetchsgd.server.sampling import Sampler
from fetchsgd.simulate.run import Run

# What client and server must agree on; where data lies and how it is watched may differ.
SHARED = ("method", "schedule", "local", "upload", "download")
SHARED_TRAIN = ("seed", "averaging", "weight_decay", "epochs", "clients_per_round")


class FederatedRun(Run):
    """A run that is set up, on the server or on a client. `clients`: 0 takes those of the task."""

    def __init__(self, config: Config, clients: int = 0) -> None:
        super().__init__(config)
        if clients:
            train = config.train
            self.sampler = Sampler(clients, train.clients_per_round, train.sampling, train.seed)
            self.rounds = max(round(train.epochs * self.sampler.rounds_per_epoch), 1)
        self.digest = self._digest()

    def _digest(self) -> str:
        """A short text that differs where settings, initial weights or frozen ones do."""
        settings = self.config.settings
        shared = {section: settings[section] for section in SHARED}
        shared["train"] = {key: settings["train"][key] for key in SHARED_TRAIN}
        shared["task"] = {"name": settings["task"]["name"], "dim": self.model.dim}
        found = hashlib.sha256(json.dumps(shared, sort_keys=True).encode())
        for tensor in (self.origin, *self.model.constants().values()):
            found.update(as_bytes(tensor))
        return found.hexdigest()[:32]


def as_bytes(tensor: Tensor) -> bytes:
    """The bits of a tensor of any type."""
    flat = tensor.detach().cpu().contiguous().flatten()
    found: bytes = flat.view(torch.uint8).numpy().tobytes()
    return found


def checksum(weights: Float32[Tensor, " dim"]) -> int:
    """By which a client knows that its weights are the server's."""
    return zlib.crc32(as_bytes(weights))
