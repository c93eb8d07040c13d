"""`train.average`: the mean of the weights of the last rounds, which is evaluated and kept.

Clients train from the weights as they are. Noise that differs from round to round, such as that of
differential privacy, is smaller in the mean, and costs no privacy: the weights were seen before.
"""

from __future__ import annotations

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.runs.checkpoint import Tensors
from fetchsgd.runs.folder import Line

Weights = Float32[Tensor, " dim"]


class Average:
    """The weights after round s of t count decay^(t - s): a mean over 1 / (1 - decay) rounds.

    It is kept beside a run (`runs.recorder.Beside`).

    >>> average = Average(0.5)
    >>> for weights in ([4.0], [1.0]):
    ...     average.after(torch.tensor(weights))
    >>> average.weights
    tensor([2.])
    """

    def __init__(self, decay: float) -> None:
        self.decay, self.rounds = decay, 0
        self.weights: Weights = torch.zeros(0)

    def after(self, weights: Weights) -> None:
        """A round is over."""
        self.rounds += 1
        if self.rounds == 1:
            self.weights = weights.clone()
            return
        share = (1 - self.decay) / (1 - self.decay**self.rounds)
        self.weights.lerp_(weights, share)

    def line(self) -> Line:
        return {}

    def result(self) -> Line:
        return {}

    def tensors(self) -> Tensors:
        return {"weights": self.weights, "rounds": torch.tensor(self.rounds)}

    def restore(self, tensors: Tensors) -> None:
        self.weights, self.rounds = tensors["weights"], int(tensors["rounds"])
