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
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float32
from torch import Tensor

from fetchsgd.clients.batches import Batch, Cohort
from fetchsgd.errors import UserError
from fetchsgd.randomness import kept_globals
from fetchsgd.trees import leaves, tree_map

# Where clients differ in size, batches are filled up to one of a few sizes (`rounded_up`).
MOST_SHAPES = 32
WARM_UPS = 3

Examples = TypeVar("Examples", bound=Batch | Cohort)
Gradient = TypeVar("Gradient")  # the cohort's in pieces, or each client's in a row


@dataclass(frozen=True)
class Recorded(Generic[Examples, Gradient]):
    """A graph, the memory that it reads, and the memory that it writes."""

    graph: torch.cuda.CUDAGraph
    weights: Float32[Tensor, " dim"]
    examples: Examples
    gradient: Gradient
    loss: Float32[Tensor, "*n"]


class GraphedGradient(Generic[Examples, Gradient]):
    """The same gradient, in memory that the next call overwrites; losses in memory of their own.

    What the model draws on the device is drawn anew by each replay, which reads the state of the
    device's global generator. What it draws on the CPU would be drawn once and for all, so such
    models are not recorded.
    """

    def __init__(self, gradient: Callable[[Tensor, Examples], tuple[Gradient, Tensor]]) -> None:
        self.gradient = gradient
        self.recorded: dict[tuple[torch.Size, ...], Recorded[Examples, Gradient]] = {}
        self.draws_on_cpu = False

    def __call__(
        self, weights: Float32[Tensor, " dim"], examples: Examples
    ) -> tuple[Gradient, Float32[Tensor, "*n"]]:
        found = self._find_or_record(weights, examples)
        if found is None:
            return self.gradient(weights, examples)
        found.weights.copy_(weights)
        for kept, given in zip(tensors_of(found.examples), tensors_of(examples), strict=True):
            kept.copy_(given)
        found.graph.replay()
        return found.gradient, found.loss.clone()

    def _find_or_record(
        self, weights: Float32[Tensor, " dim"], examples: Examples
    ) -> Recorded[Examples, Gradient] | None:
        shape = tuple(part.shape for part in tensors_of(examples))
        is_new = shape not in self.recorded
        if is_new and len(self.recorded) < MOST_SHAPES and not self.draws_on_cpu:
            # What is drawn while recording must not change what is drawn after it: a run that is
            # resumed records at another round.
            with kept_globals(weights.device):
                recorded = self._record(weights, examples)
            if recorded is not None:
                self.recorded[shape] = recorded
        return self.recorded.get(shape)

    def _record(
        self, weights: Float32[Tensor, " dim"], examples: Examples
    ) -> Recorded[Examples, Gradient] | None:
        kept_weights = weights.clone()
        kept = tree_map(torch.clone, examples)
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

    def _warm_up(self, weights: Float32[Tensor, " dim"], examples: Examples) -> None:
        """What libraries do on their first calls, such as choosing algorithms, is not recorded."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS if not self.recorded else 1):
                self.gradient(weights, examples)
        torch.cuda.current_stream().wait_stream(stream)

    @cached_property
    def _pool(self) -> Any:
        """Memory for all graphs: of two, one is done before the other begins."""
        return torch.cuda.graph_pool_handle()


class SharedRows:
    """Memory for the gradients of many clients, which recorded passes of all shapes write to.

    Rows of 100 clients may take gigabytes, and a graph of each shape would keep its own.
    """

    def __init__(self) -> None:
        self.rows: Tensor | None = None

    def first(self, count: int, weights: Float32[Tensor, " dim"]) -> Float32[Tensor, "count dim"]:
        """The first rows. Graphs that were recorded with fewer keep the memory that they had."""
        if self.rows is None or len(self.rows) < count:
            self.rows = weights.new_empty(count, len(weights))
        return self.rows[:count]


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


def tensors_of(examples: Batch | Cohort) -> tuple[Tensor, ...]:
    return tuple(leaves(examples))
