"""Plain distributed SGD with momentum: the baseline of every comparison.

It saves bytes only by running for fewer epochs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fetchsgd.methods.base import (
    State,
    check_mean,
    check_nesterov,
    momentum_state,
    momentum_step,
    require_range,
)
from fetchsgd.methods.delivery import IDENTITY, Deliver, Delivered
from fetchsgd.methods.messages import DenseMessage


@dataclass(frozen=True)
class Uncompressed:
    """Clients send gradients, the server keeps the momentum, everyone fetches all weights.

    >>> method = Uncompressed(dim=3, momentum=0.0)
    >>> mean = torch.tensor([1.0, -3.0, 0.5])
    >>> method.step(mean, method.init(torch.device("cpu")), rate=0.1)[0].update
    tensor([ 0.1000, -0.3000,  0.0500])
    """

    dim: int
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        require_range("momentum", self.momentum, 0, 1)
        check_nesterov(self.nesterov, self.momentum)

    @property
    def message(self) -> DenseMessage:
        return DenseMessage(self.dim)

    @property
    def notes(self) -> list[str]:
        return []

    def init(self, device: torch.device) -> State:
        return momentum_state(self.dim, device)

    def step(
        self,
        mean: Tensor,
        state: State,
        rate: float,
        deliver: Deliver = IDENTITY,
        *,
        round: int = 0,  # noqa: ARG002
        check_finite: bool = True,
    ) -> tuple[Delivered, State]:
        check_mean(mean, self.message.shape, check_finite)
        return momentum_step(self.momentum, mean, state, rate, deliver, self.nesterov)
