"""What a client does with its data in a round: one gradient, or steps of its own and their sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Optimizer = Literal["sgd", "adamw"]


@dataclass(frozen=True)
class LocalWork:
    """What a client does with its data.

    epochs: 0 sends one gradient over all its data; else that many passes of local steps, and it
        sends the difference of the weights. batch_size: 0 takes all of a client's data in one step.
    lr_decay: factor on the learning rate from each local step to the next.
    clip: longest gradient that a client sends or steps along; 0 is no limit.
    steps: that many local steps instead of whole passes.
    optimizer: of local steps, torch.optim's (inner.py). momentum: of SGD.
    beta1, beta2, eps: of AdamW, which takes weight decay beside the gradient.
    state: whether clients keep what their optimiser remembers, or start afresh in each round.
    outer_rate: the server's rate, where the mean difference is its gradient.
    """

    epochs: int = 0
    batch_size: int = 0
    lr_decay: float = 1.0
    clip: float = 0.0
    steps: int = 0
    optimizer: Optimizer = "sgd"
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    state: Literal["drop", "keep"] = "drop"
    outer_rate: float = 1.0

    @property
    def is_one_gradient(self) -> bool:
        return self.epochs == 0 and self.steps == 0

    @property
    def is_plain(self) -> bool:
        """SGD without momentum: nothing to remember."""
        return self.optimizer == "sgd" and not self.momentum

    @property
    def is_one_step(self) -> bool:
        """One step over all data: the difference is the rate times the gradient."""
        return self.is_plain and self.batch_size == 0 and (self.steps or self.epochs) == 1

    @property
    def keeps_state(self) -> bool:
        """Whether clients remember something of their optimiser from round to round."""
        return self.state == "keep" and not self.is_one_gradient and not self.is_plain
