"""Momentum and error as vectors on the server, which holds the model anyway (lines 11 to 14).

True top-k works so, and FetchSGD with a fresh hash in every round: there a sketch is only how the
mean gradient travels, and what is carried from round to round knows of no cells. So FetchSGD can
also do without top-k: with k = 0 all that the grid of the weights lets through is sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from fetchsgd.methods.base import State, ahead, check_nesterov, momentum_step, require_range
from fetchsgd.methods.delivery import Deliver, Delivered
from fetchsgd.vector import SparseVector

LONG_AGO = -(2**30)


@dataclass(frozen=True)
class VectorServer:
    """Sends the k largest coordinates of the error, and clears them there.

    k: 0 chooses none: all is sent, and what the grid rounds off waits in the error. The momentum
        then stays whole: to clear all of it in every round would be to do without.
    mask_momentum: clears what is sent in the momentum too, as the paper does.
    revisit: what was sent within the last `revisit_rounds` rounds counts this many times as much
        when the largest are chosen. A client that comes back after some rounds fetches a coordinate
        once, however often it has changed since, so what is sent again costs next to nothing.
    nesterov: steps along the momentum as the next round will have it.
    """

    dim: int
    k: int
    momentum: float = 0.9
    mask_momentum: bool = True
    revisit: float = 1.0
    revisit_rounds: int = 100
    nesterov: bool = False

    def __post_init__(self) -> None:
        require_range("k", self.k, 0, self.dim)
        require_range("momentum", self.momentum, 0, 1)
        check_nesterov(self.nesterov, self.momentum)
        require_range("revisit", self.revisit, 1, 1e6)
        require_range("revisit_rounds", self.revisit_rounds, 1, 2**30)

    def init(self, device: torch.device, dtype: torch.dtype = torch.float32) -> State:
        """Before the first round; numbers of other types are for in_pieces.py."""
        names = ("momentum", "error")
        state = {name: torch.zeros(self.dim, dtype=dtype, device=device) for name in names}
        if self.revisit > 1:
            state["sent"] = torch.full((self.dim,), LONG_AGO, dtype=torch.int32, device=device)
        return state

    def send(
        self,
        gradient: Float32[Tensor, " dim"],
        state: State,
        rate: float,
        deliver: Deliver,
        round: int,
    ) -> tuple[Delivered, State]:
        """Lines 11 to 14, from a round's mean gradient or an estimate of it."""
        if self.k == 0:
            return momentum_step(self.momentum, gradient, state, rate, deliver, self.nesterov)
        # The momentum may be a single zero. Vectors of this round are changed in place: on a CPU,
        # memory is what this takes time for.
        momentum = self.momentum * state["momentum"] + gradient
        step = ahead(self.momentum, momentum, gradient) if self.nesterov else momentum
        error = (rate * step).add_(state["error"])
        indices = self._largest(error, state, round)
        wanted = SparseVector.trusted(self.dim, indices, error[indices])
        sent = deliver(wanted)
        error.index_put_((indices,), wanted.values - sent.sparse.values)
        stays = sent.sparse.values == 0
        if self.mask_momentum:
            kept = torch.where(stays, momentum[indices], 0)
            momentum.index_put_((indices,), kept)
        after = {"momentum": momentum, "error": error}
        if self.revisit > 1:
            last = torch.where(stays, state["sent"][indices], round)
            after["sent"] = state["sent"].index_put((indices,), last.int())
        return sent, after

    def _largest(
        self, error: Float32[Tensor, " dim"], state: State, round: int
    ) -> Int64[Tensor, " k"]:
        size = error.abs()
        if self.revisit > 1:
            lately = state["sent"] >= round - self.revisit_rounds
            size = torch.where(lately, self.revisit * size, size)
        return size.topk(self.k, sorted=False).indices.sort().values
