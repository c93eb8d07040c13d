"""True top-k: clients send whole gradients, the server sends the k largest changes (appendix A.3).

It is what FetchSGD approximates: Algorithm 1 with S and U the identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fetchsgd.methods.base import State, check_mean
from fetchsgd.methods.delivery import IDENTITY, Deliver, Delivered
from fetchsgd.methods.in_vectors import VectorServer
from fetchsgd.methods.messages import DenseMessage


@dataclass(frozen=True)
class TrueTopK(VectorServer):
    """The server of in_vectors.py, of whole gradients."""

    has_server_error: ClassVar[bool] = True
    sketch: ClassVar[None] = None
    single_error: ClassVar[bool] = True
    clears_error: ClassVar[bool] = True

    @property
    def message(self) -> DenseMessage:
        return DenseMessage(self.dim)

    @property
    def notes(self) -> list[str]:
        return []

    def step(
        self,
        mean: Tensor,
        state: State,
        rate: float,
        deliver: Deliver = IDENTITY,
        *,
        round: int = 0,
        check_finite: bool = True,
    ) -> tuple[Delivered, State]:
        check_mean(mean, self.message.shape, check_finite)
        return self.send(mean, state, rate, deliver, round)

    def rates(self, rate: float) -> tuple[float, float]:
        return rate, 1.0
