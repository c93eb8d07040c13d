"""Local top-k: each client sends the k largest coordinates of its own vector.

Stateless as in the paper by default. Where clients return, they may also keep error and momentum
of their own, with momentum factor masking (Lin et al. 2018): what was sent is cleared from both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from fetchsgd.methods.base import Memory, State, deliver_dense, nothing, require_range
from fetchsgd.methods.largest import largest_mask, largest_sum
from fetchsgd.server.grids import Deliver, Update, exactly


@dataclass(frozen=True)
class LocalTopK:
    """`momentum` is the server's, rho_g of section 5; the local one needs clients that return.

    The server's momentum is not masked: every coordinate that it moves would be cleared at once.
    """

    dim: int
    k: int
    momentum: float = 0.0
    local_error: bool = False
    local_momentum: float = 0.0

    linear: ClassVar[bool] = False
    message_kind: ClassVar[str] = "chosen"

    @property
    def keeps_memory(self) -> bool:
        return self.local_error or self.local_momentum > 0

    def __post_init__(self) -> None:
        require_range("k", self.k, 1, self.dim)
        require_range("momentum", self.momentum, 0, 1)
        require_range("local_momentum", self.local_momentum, 0, 1)

    @property
    def notes(self) -> list[str]:
        return []

    def init(self, device: torch.device) -> State:
        return State(torch.zeros(self.dim, device=device), nothing(device))

    def compress_each(
        self, vectors: Float32[Tensor, "n dim"], memory: Memory | None
    ) -> tuple[Bool[Tensor, "n dim"], Float32[Tensor, "n dim"], Memory | None]:
        momentum = vectors
        if memory is not None and self.local_momentum:
            momentum = self.local_momentum * memory.momentum + vectors
        error = momentum
        if memory is not None and self.local_error:
            error = memory.error + momentum
        chosen = largest_mask(error, self.k)
        if memory is not None:
            memory = Memory(momentum.masked_fill(chosen, 0), error.masked_fill(chosen, 0))
        return chosen, error, memory

    def compressed_sum(
        self, vectors: Float32[Tensor, "n dim"], shares: Float32[Tensor, " n"]
    ) -> tuple[Float32[Tensor, " dim"], Int64[Tensor, ""]]:
        return largest_sum(vectors, shares, self.k)

    def step(
        self, mean: Tensor, state: State, rate: float, deliver: Deliver = exactly
    ) -> tuple[Update, State]:
        momentum = self.momentum * state.momentum + mean
        sent, error = deliver_dense(rate * momentum, state.error, deliver)
        return sent, State(momentum, error)
