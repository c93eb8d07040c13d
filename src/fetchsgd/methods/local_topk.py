"""Local top-k: each client sends the k largest coordinates of its own vector.

Stateless as in the paper by default. Where clients return, they may also keep error and momentum
of their own, with momentum factor masking (Lin et al. 2018): what was sent is cleared from both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
from fetchsgd.methods.messages import ChosenMessage


@dataclass(frozen=True)
class LocalTopK:
    """`momentum` is the server's, rho_g of section 5; the local one needs clients that return.

    The server's momentum is not masked: every coordinate that it moves would be cleared at once.

    >>> from fetchsgd.methods import Upload
    >>> from fetchsgd.quantisers import Bits
    >>> gradient = torch.tensor([1.0, -3.0, 0.5, 2.0])
    >>> message = LocalTopK(dim=4, k=2).message
    >>> payload = message.write(gradient, None, client=0, round=0, upload=Upload(Bits(32), key=0))
    >>> payload.indices, payload.values.floats()
    (tensor([1, 3]), tensor([-3.,  2.]))
    """

    dim: int
    k: int
    momentum: float = 0.0
    local_error: bool = False
    local_momentum: float = 0.0
    nesterov: bool = False

    message_kind: ClassVar[str] = "chosen"

    def __post_init__(self) -> None:
        require_range("k", self.k, 1, self.dim)
        require_range("momentum", self.momentum, 0, 1)
        check_nesterov(self.nesterov, self.momentum)
        require_range("local_momentum", self.local_momentum, 0, 1)

    @property
    def message(self) -> ChosenMessage:
        return ChosenMessage(self.dim, self.k, self.local_error, self.local_momentum)

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
