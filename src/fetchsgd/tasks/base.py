"""A task: clients with data, a model to train, a loss, and a way to measure quality."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor, nn

from fetchsgd.errors import UserError
from fetchsgd.tasks.checks import check_offsets, check_parts, check_tensors, grouped
from fetchsgd.trees import Tree, at, first_leaf, tree_map

Loss = Callable[[Any, Any], Tensor]  # of outputs and targets, each a tensor or a tree of them
Augment = Callable[[Any, torch.Generator], Any]


class Clients(ABC):
    """Who owns which examples: client i owns rows offsets[i] to offsets[i + 1].

    `ClientData` holds the examples in memory; `StoredData` (stored.py) reads those of a round;
    `RuledData` (by_rule.py) has no list of who owns what, but a rule.
    """

    offsets: NDArray[np.int64]

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    @property
    def equal_sizes(self) -> bool:
        """Whether all clients have as many examples."""
        return bool((self.sizes == self.sizes[0]).all())

    def firsts(self, cohort: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first row of each client of a cohort."""
        return self.offsets[cohort]

    def sizes_of(self, cohort: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many examples each client of a cohort has."""
        return self.offsets[cohort + 1] - self.offsets[cohort]

    def rows(self, cohort: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The examples of a cohort, padded to its largest client: (n, m) rows, and (n,) sizes."""
        sizes = self.sizes_of(cohort)
        within = np.minimum(np.arange(sizes.max()), sizes[:, None] - 1)
        return self.firsts(cohort)[:, None] + within, sizes

    def owners(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The client of each row, and which of its examples that is."""
        clients = np.searchsorted(self.offsets, rows, "right") - 1
        return clients, rows - self.offsets[clients]

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where `read` leaves examples."""

    @abstractmethod
    def to(self, device: torch.device) -> Self:
        """The same examples for another device."""

    @abstractmethod
    def only(self, client: int) -> Self:
        """The examples of one client, which then is client 0."""

    @abstractmethod
    def read(self, rows: NDArray[np.int64], round: int = 0) -> tuple[Tree, Tree]:
        """The inputs and targets of rows of any shape, which comes first in theirs."""


@dataclass(frozen=True)
class ClientData(Clients):
    """All clients' examples in memory, one client after another.

    inputs, targets: a tensor each, or several in a tuple or dict, which the model then gets as
        arguments one after another or by their names.
    lengths: how much of its last dimension each input uses, where the rest is padding that the
        model does not look at; batches are cut off behind the longest.

    >>> owners = np.array([0, 1, 0, 2])  # the client of each example
    >>> data = ClientData.from_groups(torch.randn(4, 5), torch.zeros(4), owners)
    >>> data.num_clients, data.sizes.tolist()
    (3, [2, 1, 1])
    """

    inputs: Tree
    targets: Tree
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        check_tensors(self.inputs, self.targets)
        check_offsets(self.offsets, len(first_leaf(self.inputs)))
        if self.lengths is not None and not isinstance(self.inputs, Tensor):
            raise UserError("lengths are for inputs that are one tensor; leave them out")

    @classmethod
    def from_groups(cls, inputs: Tree, targets: Tree, client_of: NDArray[np.int64]) -> ClientData:
        """Group examples by the client that owns them; clients are numbered from 0."""
        check_tensors(inputs, targets)
        order, offsets = grouped(client_of, len(first_leaf(inputs)))
        index = torch.from_numpy(order)
        return cls(at(inputs, index), at(targets, index), offsets)

    @property
    def device(self) -> torch.device:
        return first_leaf(self.inputs).device

    def to(self, device: torch.device) -> ClientData:
        inputs, targets = (
            tree_map(lambda part: part.to(device), tree) for tree in (self.inputs, self.targets)
        )
        return replace(self, inputs=inputs, targets=targets)

    def only(self, client: int) -> ClientData:
        own = slice(int(self.offsets[client]), int(self.offsets[client + 1]))
        lengths = None if self.lengths is None else self.lengths[own]
        size = np.array([0, own.stop - own.start])
        return ClientData(at(self.inputs, own), at(self.targets, own), size, lengths)

    def read(self, rows: NDArray[np.int64], round: int = 0) -> tuple[Tree, Tree]:  # noqa: ARG002
        index = torch.from_numpy(rows).to(self.device, non_blocking=True)
        inputs = self.inputs
        if self.lengths is not None:
            inputs = cut(inputs, int(self.lengths[rows].max()))
        return at(inputs, index), at(self.targets, index)


@dataclass(frozen=True)
class HeldOut:
    """The examples of the test set; `lengths` as in `ClientData`."""

    inputs: Tree
    targets: Tree
    lengths: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        check_tensors(self.inputs, self.targets, "the test set")


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the user names. `loss` gives one number per example, and must not mix examples.

    test_inputs, test_targets, test_lengths: the test set, `lengths` as in `ClientData`; or instead
    test: reads it, for whoever evaluates. Clients of a federation do not.
    model: makes the module; its initial weights must come from torch's generator, which is seeded.
        Parameters with requires_grad=False are not trained. Each part trains in the mode in which
        it is handed over, so `eval()` switches its dropout off. Buffers must stay constant.
    quality: from outputs and targets to one number per example, whose mean is the metric; or to
        two, (n, 2), a total and a count, such as of tokens: the metric is the ratio of the sums.
    summary: turns that into the metric shown, such as a mean loss into perplexity.
    eval_batch: how many test examples go through the model at once.
    augment: changes training inputs at random, on their device.
    preset: settings that suit the task, by section and key; `methods` in it holds those of methods,
        "fetchsgd-paper" in that those of FetchSGD with one hash for the whole run, "messages"
        those of uncompressed SGD whose clients send levels of one step (`shared_step`).
    """

    name: str
    train: Clients
    test_inputs: Tree = None
    test_targets: Tree = None
    test_lengths: NDArray[np.int64] | None = None
    test: Callable[[], HeldOut] | None = None
    model: Callable[[], nn.Module]
    loss: Loss
    quality: Loss
    metric: str = "accuracy"
    higher_is_better: bool = True
    summary: Callable[[float], float] = float
    eval_batch: int = 2000
    augment: Augment | None = None
    preset: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.train, Clients):
            raise UserError(
                f"train of the task {self.name!r} must be a ClientData, or what from_arrays, "
                f"from_dataset and the like return, got a {type(self.train).__name__}"
            )
        check_parts(self.name, model=self.model, loss=self.loss, quality=self.quality)
        given = [part is not None for part in (self.test_inputs, self.test_targets)]
        if self.test is None and not all(given):
            raise ValueError(
                f"the task {self.name!r} has no test set: give test_inputs and test_targets, or "
                "test, a function that reads both"
            )
        if self.test is not None and (any(given) or self.test_lengths is not None):
            raise ValueError(
                f"the task {self.name!r} has two test sets: give test_inputs and test_targets, or "
                "test, not both"
            )

    @cached_property
    def test_data(self) -> HeldOut:
        """The test set, read when it is first asked for."""
        if self.test is not None:
            return self.test()
        return HeldOut(self.test_inputs, self.test_targets, self.test_lengths)


def cut(inputs: Tensor, longest: int) -> Tensor:
    """Cut off padding that no example needs, up to a multiple of eight, which suits GPUs."""
    return inputs[..., : -(-longest // 8) * 8]


def cross_entropy(outputs: Tensor, targets: Int64[Tensor, " n"]) -> Tensor:
    """The loss of classifiers, one number per example."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def is_correct(outputs: Tensor, targets: Int64[Tensor, " n"]) -> Tensor:
    """Whether the most likely class is the right one, 1 or 0 per example."""
    return (outputs.argmax(dim=1) == targets).float()


def totals_and_counts(quality: Tensor) -> tuple[Tensor, Tensor]:
    """The two sums over a batch of what `Task.quality` gave, on its device."""
    if quality.ndim == 1:
        return quality.sum(), quality.new_full((), len(quality), dtype=torch.float64)
    totals, counts = quality.unbind(dim=1)
    return totals.sum(), counts.sum()


def perplexity(mean_loss: float) -> float:
    """The exponential of the mean loss per token."""
    return math.inf if mean_loss > 700 else math.exp(mean_loss)  # which would overflow
