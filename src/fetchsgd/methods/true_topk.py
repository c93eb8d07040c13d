"""True top-k: clients send whole gradients, the server sends the k largest changes (appendix A.3).

It is what FetchSGD approximates: Algorithm 1 with S and U the identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fetchsgd.methods.base import State, flatten, require_range
from fetchsgd.server.grids import Deliver, Update, exactly
from fetchsgd.vector import SparseVector


@dataclass(frozen=True)
class TrueTopK:
    """Momentum and error are vectors here, on the server."""

    dim: int
    k: int
    momentum: float = 0.9
    mask_momentum: bool = True

    linear: ClassVar[bool] = True
    has_server_error: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_range("k", self.k, 1, self.dim)
        require_range("momentum", self.momentum, 0, 1)

    @property
    def notes(self) -> list[str]:
        return []

    def init(self, device: torch.device) -> State:
        return State(torch.zeros(self.dim, device=device), torch.zeros(self.dim, device=device))

    def compress(self, vectors: Tensor | list[Tensor]) -> Tensor:
        return flatten(vectors)

    @property
    def numbers_up(self) -> int:
        return self.dim

    def step(
        self, mean: Tensor, state: State, rate: float, deliver: Deliver = exactly
    ) -> tuple[Update, State]:
        momentum = self.momentum * state.momentum + mean
        error = rate * momentum + state.error
        indices = error.abs().topk(self.k, sorted=False).indices.sort().values
        wanted = SparseVector.trusted(len(error), indices, error[indices])
        update = deliver(wanted)
        assert isinstance(update, SparseVector)
        error = error.index_put((indices,), wanted.values - update.values)
        if self.mask_momentum:
            kept = torch.where(update.values == 0, momentum[indices], 0)
            momentum = momentum.index_put((indices,), kept)
        return update, State(momentum, error)
