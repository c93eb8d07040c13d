"""True top-k: clients send whole gradients, the server sends the k largest changes (appendix A.3).

It is what FetchSGD approximates: Algorithm 1 with S and U the identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fetchsgd.methods.base import State, check_mean, require_range
from fetchsgd.methods.delivery import IDENTITY, Deliver, Delivered
from fetchsgd.methods.in_vectors import VectorServer
from fetchsgd.methods.messages import DenseMessage


@dataclass(frozen=True)
class TrueTopK(VectorServer):
    """The server of in_vectors.py, of whole gradients.

    >>> import torch
    >>> method = TrueTopK(dim=4, k=1, momentum=0.0)
    >>> mean = torch.tensor([1.0, -3.0, 0.5, 2.0])
    >>> sent, state = method.step(mean, method.init(torch.device("cpu")), rate=0.1)
    >>> sent.update.to_dense()
    tensor([ 0.0000, -0.3000,  0.0000,  0.0000])
    >>> state["error"]  # what was not sent
    tensor([0.1000, 0.0000, 0.0500, 0.2000])
    """

    has_server_error: ClassVar[bool] = True
    sketch: ClassVar[None] = None
    single_error: ClassVar[bool] = True
    clears_error: ClassVar[bool] = True

    @property
    def message(self) -> DenseMessage:
        return DenseMessage(self.dim)

    def __post_init__(self) -> None:
        require_range("k", self.k, 1, self.dim)
        super().__post_init__()

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
