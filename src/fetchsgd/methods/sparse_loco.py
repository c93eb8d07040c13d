"""SparseLoCo's scheme (Sarfi et al. 2025), to compare with: few workers, each with its own error.

Each worker sends the largest coordinates of each chunk of its difference, and keeps the rest as an
error that decays; the server takes the mean, without momentum, which the errors stand in for. The
scheme's values take two bits, `upload.quantiser = "two_bits"`: 64 of 4,096 with indices of 12 bits
are 146 times less than float32, and less still where positions are coded as they are here.

A worker that leaves takes its error with it, and one that joins has none.
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
from fetchsgd.methods.messages import ChunkedMessage


@dataclass(frozen=True)
class SparseLoCo:
    """The largest `per_chunk` of each `chunk` coordinates, by local steps.

    error_decay: what a worker keeps of its error from round to round.

    >>> SparseLoCo(dim=8192).message.numbers
    128
    """

    dim: int
    chunk: int = 4096
    per_chunk: int = 64
    error_decay: float = 0.95
    momentum: float = 0.0
    nesterov: bool = False

    needs_local_steps: ClassVar[bool] = True
    message_kind: ClassVar[str] = "chunked"

    def __post_init__(self) -> None:
        require_range("chunk", self.chunk, 1, 2**31)
        require_range("per_chunk", self.per_chunk, 1, self.chunk)
        require_range("error_decay", self.error_decay, 0, 1)
        require_range("momentum", self.momentum, 0, 1)
        check_nesterov(self.nesterov, self.momentum)

    @property
    def message(self) -> ChunkedMessage:
        return ChunkedMessage(self.dim, self.chunk, self.per_chunk, self.error_decay)

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
