"""True top-k: clients send whole gradients, the server sends the k largest changes (appendix A.3).

It is what FetchSGD approximates: Algorithm 1 with S and U the identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fetchsgd.methods.base import State, check_mean, require_range
from fetchsgd.methods.delivery import IDENTITY, Deliver, Delivered
from fetchsgd.methods.messages import DenseMessage
from fetchsgd.vector import SparseVector


@dataclass(frozen=True)
class TrueTopK:
    """Momentum and error are vectors here, on the server."""

    dim: int
    k: int
    momentum: float = 0.9
    mask_momentum: bool = True

    has_server_error: ClassVar[bool] = True
    sketch: ClassVar[None] = None
    single_error: ClassVar[bool] = True
    clears_error: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_range("k", self.k, 1, self.dim)
        require_range("momentum", self.momentum, 0, 1)

    @property
    def message(self) -> DenseMessage:
        return DenseMessage(self.dim)

    @property
    def notes(self) -> list[str]:
        return []

    def init(self, device: torch.device) -> State:
        names = ("momentum", "error")
        return {name: torch.zeros(self.dim, device=device) for name in names}

    def step(
        self,
        mean: Tensor,
        state: State,
        rate: float,
        deliver: Deliver = IDENTITY,
        *,
        check_finite: bool = True,
    ) -> tuple[Delivered, State]:
        check_mean(mean, self.message.shape, check_finite)
        momentum = self.momentum * state["momentum"] + mean
        error = rate * momentum + state["error"]
        indices = error.abs().topk(self.k, sorted=False).indices.sort().values
        wanted = SparseVector.trusted(len(error), indices, error[indices])
        sent = deliver(wanted)
        error = error.index_put((indices,), wanted.values - sent.sparse.values)
        if self.mask_momentum:
            kept = torch.where(sent.sparse.values == 0, momentum[indices], 0)
            momentum = momentum.index_put((indices,), kept)
        return sent, {"momentum": momentum, "error": error}

    def rates(self, rate: float) -> tuple[float, float]:
        return rate, 1.0
