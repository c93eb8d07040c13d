"""A method of your own: a dataclass that says what clients send and what the server does with it.

    cd examples && fetchsgd train digits --method custom_method:ServerAdam --set peak=0.002

Clients send whole gradients, in as few bits as `upload.bits` says. The server takes the step of
Adam with their mean (Reddi et al. 2021), so every weight gets a rate of its own. Options are the
fields of the class; `--set beta2=0.95` changes one. Simulation, federation and report need no more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fetchsgd.methods import IDENTITY, Deliver, Delivered, DenseMessage, State
from fetchsgd.methods.base import check_mean, deliver_dense, nothing, require_range


@dataclass(frozen=True)
class ServerAdam:
    """`dim` is the number of weights, filled in by the program."""

    dim: int
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            require_range(name, getattr(self, name), 0, 0.999)
        require_range("epsilon", self.epsilon, 1e-12, 1)

    @property
    def message(self) -> DenseMessage:
        """What a client sends, how it is checked, and how messages add up."""
        return DenseMessage(self.dim)

    @property
    def notes(self) -> list[str]:
        return []

    def init(self, device: torch.device) -> State:
        """What the server carries from round to round, and what a checkpoint keeps."""
        zeros = torch.zeros(self.dim, device=device)
        rounds = torch.zeros((), device=device)
        return {"mean": zeros, "square": zeros, "rounds": rounds, "unsent": nothing(device)}

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
        """From the mean of what clients sent to what is subtracted from the weights."""
        check_mean(mean, self.message.shape, check_finite)
        rounds = state["rounds"] + 1
        first = self.beta1 * state["mean"] + (1 - self.beta1) * mean
        second = self.beta2 * state["square"] + (1 - self.beta2) * mean.square()
        spread = (second / (1 - self.beta2**rounds)).sqrt() + self.epsilon
        wanted = rate * first / (1 - self.beta1**rounds) / spread
        # Where weights are quantised, what cannot be sent now is added to what is wanted next time.
        sent, unsent = deliver_dense(wanted, state["unsent"], deliver)
        return sent, {"mean": first, "square": second, "rounds": rounds, "unsent": unsent}
