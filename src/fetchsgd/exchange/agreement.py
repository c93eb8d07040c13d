"""What server and clients must agree on: settings and initial weights, and every version since."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.runs.setup import Setup

# Where data lies and how a run is watched may differ.
SHARED = ("method", "schedule", "local", "upload", "download")
SHARED_TRAIN = (
    "seed", "averaging", "weight_decay", "weight_decay_by", "epochs", "clients_per_round",
)  # fmt: skip


def agreed_settings(setup: Setup) -> bytes:
    """The settings that count, in the one form in which they are digested: JSON, keys sorted."""
    settings = setup.config.settings
    shared = {section: settings[section] for section in SHARED}
    if setup.config.privacy.is_on:
        shared["privacy"] = settings["privacy"]
    shared["train"] = {key: settings["train"][key] for key in SHARED_TRAIN}
    shared["task"] = {"name": settings["task"]["name"], "dim": setup.model.dim}
    return json.dumps(shared, sort_keys=True).encode()


def frozen(setup: Setup) -> bytes:
    """What the model has and does not train, one part after another."""
    return b"".join(as_bytes(tensor) for tensor in setup.model.constants().values())


def digest(setup: Setup) -> str:
    """A short text that differs where settings, initial weights or frozen ones do."""
    agreed = agreed_settings(setup), as_bytes(setup.origin), frozen(setup)
    return hashlib.sha256(b"".join(agreed)).hexdigest()[:32]


def checksum(weights: Float32[Tensor, " dim"]) -> int:
    """By which a client knows that its weights are the server's."""
    return zlib.crc32(as_bytes(weights))


def context(
    digest: str, round: int, rate: float, size: float, weights: Float32[Tensor, " dim"]
) -> bytes:
    """Of all that clients compute their vectors from in a round.

    Secure aggregation binds clients to it: a server that sends one of them another model, rate or
    step than the others gets no sum.
    """
    about = struct.pack("<16sQdd", bytes.fromhex(digest), round, rate, size)
    return hashlib.sha256(b"fetchsgd context" + about + as_bytes(weights)).digest()


def as_bytes(tensor: Tensor) -> bytes:
    """The bits of a tensor of any type."""
    flat = tensor.detach().cpu().contiguous().flatten()
    found: bytes = flat.view(torch.uint8).numpy().tobytes()
    return found
