"""Plain distributed SGD with momentum: the baseline of every comparison.

It saves bytes only by running for fewer epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fetchsgd.methods.base import State, deliver_dense, flatten, nothing, require_range
from fetchsgd.server.grids import Deliver, Update, exactly


@dataclass(frozen=True)
class Uncompressed:
    """Clients send gradients, the server keeps the momentum, everyone fetches all weights."""

    dim: int
    momentum: float = 0.9

    linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_range("momentum", self.momentum, 0, 1)

    @property
    def notes(self) -> list[str]:
        return []

    def init(self, device: torch.device) -> State:
        return State(torch.zeros(self.dim, device=device), nothing(device))

    def compress(self, vectors: Tensor | list[Tensor]) -> Tensor:
        return flatten(vectors)

    @property
    def numbers_up(self) -> int:
        return self.dim

    def step(
        self, mean: Tensor, state: State, rate: float, deliver: Deliver = exactly
    ) -> tuple[Update, State]:
        momentum = self.momentum * state.momentum + mean
        sent, error = deliver_dense(rate * momentum, state.error, deliver)
        return sent, State(momentum, error)
