"""The cohort's backward pass as a CUDA graph.

A small model's backward pass is hundreds of short kernels, and launching them one by one takes
longer than running them. Recorded once for each shape of a cohort, they are launched as one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.client import Cohort, Trainer

# Epochs have one or two shapes of cohorts; tasks with clients of many sizes run without graphs.
MOST_SHAPES = 4
WARM_UPS = 3


@dataclass(frozen=True)
class Recorded:
    """A graph, the memory that it reads, and the memory that it writes."""

    graph: torch.cuda.CUDAGraph
    weights: Float32[Tensor, " dim"]
    cohort: Cohort
    gradient: Float32[Tensor, " dim"]
    loss: Float32[Tensor, ""]


class GraphedGradient:
    """`Trainer.mean_gradient`, with the gradient in one piece that the next call overwrites."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.recorded: dict[tuple[torch.Size, ...], Recorded] = {}

    def __call__(
        self, weights: Float32[Tensor, " dim"], cohort: Cohort
    ) -> tuple[list[Tensor], Float32[Tensor, ""]]:
        shape = tuple(part.shape for part in tensors_of(cohort))
        if shape not in self.recorded:
            if len(self.recorded) == MOST_SHAPES:
                return self.trainer.mean_gradient(weights, cohort)
            self.recorded[shape] = self._record(weights, cohort)
        found = self.recorded[shape]
        found.weights.copy_(weights)
        for kept, given in zip(tensors_of(found.cohort), tensors_of(cohort), strict=True):
            kept.copy_(given)
        found.graph.replay()
        return [found.gradient], found.loss.clone()

    def _record(self, weights: Float32[Tensor, " dim"], cohort: Cohort) -> Recorded:
        kept_weights = weights.clone()
        kept = Cohort(*(part.clone() for part in tensors_of(cohort)))
        # What libraries do on their first calls, such as choosing algorithms, must stay outside.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self.trainer.mean_gradient(kept_weights, kept)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            pieces, loss = self.trainer.mean_gradient(kept_weights, kept)
            gradient = torch.cat([piece.flatten() for piece in pieces])
        return Recorded(graph, kept_weights, kept, gradient, loss)


def tensors_of(cohort: Cohort) -> tuple[Tensor, ...]:
    return cohort.inputs, cohort.targets, cohort.present, cohort.weights
