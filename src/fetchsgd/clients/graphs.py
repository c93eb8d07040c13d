"""A backward pass as a CUDA graph.

A backward pass is hundreds or thousands of short kernels, and launching them one by one takes
longer than running them. Recorded once for each shape of a batch, they are launched as one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.clients.batches import Batch
from fetchsgd.errors import UserError
from fetchsgd.randomness import kept_globals

# Where clients differ in size, batches are filled up to one of a few sizes (`rounded_up`).
MOST_SHAPES = 32
WARM_UPS = 3

Gradient = Callable[[Tensor, Batch], tuple[list[Tensor], Tensor]]


@dataclass(frozen=True)
class Recorded:
    """A graph, the memory that it reads, and the memory that it writes."""

    graph: torch.cuda.CUDAGraph
    weights: Float32[Tensor, " dim"]
    batch: Batch
    gradient: list[Tensor]
    loss: Float32[Tensor, ""]


class GraphedGradient:
    """The same gradient, in memory that the next call overwrites.

    What the model draws on the device is drawn anew by each replay, which reads the state of the
    device's global generator. What it draws on the CPU would be drawn once and for all, so such
    models are not recorded.
    """

    def __init__(self, gradient: Gradient) -> None:
        self.gradient = gradient
        self.recorded: dict[tuple[torch.Size, ...], Recorded] = {}
        self.draws_on_cpu = False

    def __call__(
        self, weights: Float32[Tensor, " dim"], batch: Batch
    ) -> tuple[list[Tensor], Float32[Tensor, ""]]:
        found = self._find_or_record(weights, batch)
        if found is None:
            return self.gradient(weights, batch)
        found.weights.copy_(weights)
        for kept, given in zip(tensors_of(found.batch), tensors_of(batch), strict=True):
            kept.copy_(given)
        found.graph.replay()
        return found.gradient, found.loss.clone()

    def _find_or_record(self, weights: Float32[Tensor, " dim"], batch: Batch) -> Recorded | None:
        shape = tuple(part.shape for part in tensors_of(batch))
        is_new = shape not in self.recorded
        if is_new and len(self.recorded) < MOST_SHAPES and not self.draws_on_cpu:
            # What is drawn while recording must not change what is drawn after it: a run that is
            # resumed records at another round.
            with kept_globals(weights.device):
                recorded = self._record(weights, batch)
            if recorded is not None:
                self.recorded[shape] = recorded
        return self.recorded.get(shape)

    def _record(self, weights: Float32[Tensor, " dim"], batch: Batch) -> Recorded | None:
        kept_weights = weights.clone()
        kept = Batch(*(part.clone() for part in tensors_of(batch)))
        before = torch.get_rng_state()
        self._warm_up(kept_weights, kept)
        self.draws_on_cpu = not torch.equal(before, torch.get_rng_state())
        if self.draws_on_cpu:
            return None
        graph = torch.cuda.CUDAGraph()
        try:
            with uncollected(), torch.cuda.graph(graph, pool=self._pool):
                gradient, loss = self.gradient(kept_weights, kept)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise UserError(
                "the model cannot be recorded as a CUDA graph, perhaps because its data decide "
                f"what it computes: {str(error).splitlines()[0]}; set "
                "train.cuda_graphs=false"
            ) from error
        return Recorded(graph, kept_weights, kept, gradient, loss)

    def _warm_up(self, weights: Float32[Tensor, " dim"], batch: Batch) -> None:
        """What libraries do on their first calls, such as choosing algorithms, is not recorded."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS if not self.recorded else 1):
                self.gradient(weights, batch)
        torch.cuda.current_stream().wait_stream(stream)

    @cached_property
    def _pool(self) -> Any:
        """Memory for all graphs: of two, one is done before the other begins."""
        return torch.cuda.graph_pool_handle()


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause garbage collection: freeing an old run's graphs would end the recording of a new one.

    torch.cuda.graph collected garbage itself before it recorded, until torch 2.9.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def tensors_of(batch: Batch) -> tuple[Tensor, ...]:
    return batch.inputs, batch.targets, batch.shares
