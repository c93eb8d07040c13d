"""What a user may choose of the hook, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from fetchsgd.ddp.keys import BUCKETS
from fetchsgd.errors import UserError
from fetchsgd.methods.decoding import Prior
from fetchsgd.methods.in_vectors import VectorServer
from fetchsgd.sketch import CountSketch
from fetchsgd.sketch.count_sketch import default_block

Cells = Literal["float32", "bfloat16", "int16", "int8", "int4"]
BITS = {"float32": 32, "bfloat16": 16, "int16": 16, "int8": 8, "int4": 4}
# Short blocks: neighbours that move together err together.
MOST_BLOCK = 16
MB = 2**20  # as DDP counts its buckets
# Of gradients that are exchanged together on a GPU: the more, the less Python in a backward pass,
# and the later is the first table sent (docs/ddp.md).
GROUP_ON_GPU = 512.0


@dataclass(frozen=True)
class Settings:
    """compression: how many times fewer bytes than the gradient in float32 a table takes.

    cells: in what cells are summed: floats, or whole levels of one public step (levels.py). Fewer
        bits are more cells for the same bytes.
    start_iter: steps before the first that is compressed.
    top_k: the share of the weights that get an update in a step, 0 for all of them. What is left
        waits in the error.
    momentum: of the hook itself. Leave it at 0 if the optimiser has its own.
    decode, noise_limit: how a table is read (fetchsgd.methods.decoding). "prior" learns how large
        each weight's gradients are, which takes a float for each and far more time.
    balance: tensors are divided by their usual size to this power before they share a table, and
        multiplied after. 0 leaves them as they are; 0.5 makes the noise of all weights together
        least, and 1 that of each in terms of its own gradient (balance.py).
    exact_below: tensors of fewer elements are never compressed, and vectors (biases, norms) neither
        unless it is 0.
    feedback: of what a table could not say of a rank's gradient, the share that the rank adds to
        its next one. 0 keeps nothing; near 1 there is least noise, and most delay. It is a rank's
        own, a float for each weight, and not part of a checkpoint.
    group_mb: buckets wait for each other until so many MB of gradients are there, or the last of
        them, and share a table. 0: each has its own. None: 0 on a CPU, 512 on a GPU (grouping.py).
    seed: of hashes and of rounding.
    """

    compression: float = 16.0
    cells: Cells = "int8"
    start_iter: int = 0
    top_k: float = 0.0
    momentum: float = 0.0
    decode: Literal["prior", "unbiased"] = "unbiased"
    noise_limit: float = 2.5
    balance: float = 0.5
    exact_below: int = 1024
    feedback: float = 0.0
    group_mb: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("compression", self.compression, 1.0, 1e6)
        if self.cells not in BITS:
            raise UserError(f"cells must be one of {', '.join(BITS)}, got {self.cells!r}")
        if self.decode not in ("prior", "unbiased"):
            raise UserError(f"decode must be 'prior' or 'unbiased', got {self.decode!r}")
        check_number("start_iter", self.start_iter, 0, 2**40)
        check_number("top_k", self.top_k, 0.0, 1.0)
        check_number("momentum", self.momentum, 0.0, 1.0)
        check_number("noise_limit", self.noise_limit, 1.0, 1e6)
        check_number("balance", self.balance, 0.0, 1.0)
        check_number("exact_below", self.exact_below, 0, 2**60)
        check_number("feedback", self.feedback, 0.0, 1.0)
        if self.feedback and (self.top_k or self.decode == "prior"):
            raise UserError(
                f"feedback={self.feedback:g} goes with decode='unbiased' and top_k=0 alone, got "
                f"decode={self.decode!r} and top_k={self.top_k:g}"
            )
        if self.group_mb is not None:
            check_number("group_mb", self.group_mb, 0.0, 1e9)
        check_number("seed", self.seed, 0, 2**63 - 1)

    @property
    def has_levels(self) -> bool:
        return self.cells.startswith("int")

    @property
    def bits(self) -> int:
        """Of a cell on the wire."""
        return BITS[self.cells]

    @property
    def prior(self) -> Prior | None:
        return Prior(self.noise_limit) if self.decode == "prior" else None

    def gain(self, dim: int, cols: int) -> float:
        """Of a cell, what each of its weights gets without a prior.

        All of it, so that the mean over hashes is right; less if the noise would be longer than the
        limit; and with feedback as much as makes up for what is said later.
        """
        share = cols / dim
        return min(1 - self.feedback * (1 - share), self.noise_limit * math.sqrt(share))

    @property
    def fields(self) -> dict[str, bool]:
        """What is kept for each tensor that is compressed; True: a number for each weight."""
        kept = {
            "variance": (self.decode == "prior", True),
            "momentum": (self.momentum > 0, True),
            "error": (self.top_k > 0, True),
            "step": (self.has_levels, False),
            "size": (self.balance > 0, False),
        }
        return {name: each for name, (wanted, each) in kept.items() if wanted}

    def is_compressed(self, shape: torch.Size) -> bool:
        """Vectors and small tensors are few bytes, and each of their numbers moves much."""
        is_wide = len(shape) > 1 or self.exact_below == 0
        return is_wide and shape.numel() >= self.exact_below

    def group_bytes(self, device: torch.device) -> float:
        """Of gradients that are exchanged together: buckets are gathered up to this."""
        usual = 0.0 if device.type == "cpu" else GROUP_ON_GPU
        return MB * (usual if self.group_mb is None else self.group_mb)

    def sketch(self, dim: int, step: int, bucket: int) -> CountSketch:
        """For a bucket with so many weights to compress, with the hash of the step (keys.py)."""
        cols = min(max(math.ceil(dim * 32 / (self.bits * self.compression)), 1), dim)
        block = min(default_block(cols), MOST_BLOCK)
        base = CountSketch(dim, 1, cols, self.seed, block, hash="permutation")
        return base.for_round(step * BUCKETS + bucket)

    def server(self, dim: int) -> VectorServer:
        """What sends the largest coordinates, with `top_k`."""
        return VectorServer(dim, max(math.ceil(self.top_k * dim), 1), self.momentum)


def check_number(name: str, value: float, low: float, high: float) -> None:
    kind = int if isinstance(high, int) else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind):
        raise UserError(f"{name} must be a {'whole ' if kind is int else ''}number, got {value!r}")
    if not low <= value <= high:
        raise UserError(f"{name} must be from {low:g} to {high:g}, got {value}")
