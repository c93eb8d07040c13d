"""Clients whose examples are read when their turn comes: more data than memory holds.

A source gives inputs and targets for row numbers. There is one for arrays on disk, one for torch's
`Dataset`, and one for Hugging Face's `datasets`; a source of one's own is a class with `__len__`
and `read`. Only the examples of a round's clients are read, each once a round.

    from_arrays(inputs, targets, client_of)     numpy arrays, such as np.load(..., mmap_mode="r")
    from_dataset(dataset, client_of)            one Dataset, with a client for every index
    from_datasets([dataset, ...])               a Dataset per client
    from_hugging_face(dataset, client="user", inputs="text_ids", targets="label")

Each takes a `transform` of a single example, with a generator of its own: what it draws depends on
the seed, the round, the client and the example alone, so it is the same in a simulation, whoever
else takes part, and on a real client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate

from fetchsgd.errors import UserError
from fetchsgd.randomness import number
from fetchsgd.tasks.base import Clients
from fetchsgd.tasks.checks import check_offsets, check_tensors, grouped
from fetchsgd.trees import Tree, at, first_leaf, leaves, tree_map

Rows = NDArray[np.int64]
Transform = Callable[[Any, torch.Generator], Any]  # of the inputs of one example


class Source(Protocol):
    """Where examples are."""

    def __len__(self) -> int: ...

    def read(self, rows: Rows) -> tuple[Tree, Tree]:
        """Inputs and targets of distinct rows in rising order, as tensors on the CPU."""


@dataclass(frozen=True)
class StoredData(Clients):
    """Examples in a source, by client.

    order: which row of the source each example is, one client after another.
    numbers: of the clients, as they are known elsewhere; what `transform` draws depends on them.
    """

    source: Source
    order: Rows
    offsets: Rows
    transform: Transform | None = None
    seed: int = 0
    numbers: Rows | None = None
    device_name: str = "cpu"

    def __post_init__(self) -> None:
        check_offsets(self.offsets, len(self.order))

    @property
    def device(self) -> torch.device:
        return torch.device(self.device_name)

    def to(self, device: torch.device) -> StoredData:
        return replace(self, device_name=str(device))

    def only(self, client: int) -> StoredData:
        own = self.order[self.offsets[client] : self.offsets[client + 1]]
        known = client if self.numbers is None else int(self.numbers[client])
        size = np.array([0, len(own)])
        return replace(self, order=own, offsets=size, numbers=np.array([known]))

    def read(self, rows: Rows, round: int = 0) -> tuple[Tree, Tree]:
        distinct, places = np.unique(rows, return_inverse=True)
        wanted, back = np.unique(self.order[distinct], return_inverse=True)
        inputs, targets = self.source.read(wanted)
        check_tensors(inputs, targets, "what the task's source reads")
        if len(first_leaf(inputs)) != len(wanted):
            raise UserError(
                f"the task's source was asked for {len(wanted)} examples and gave "
                f"{len(first_leaf(inputs))}"
            )
        inputs, targets = at((inputs, targets), torch.from_numpy(back))
        if self.transform is not None:
            inputs = self._transformed(inputs, distinct, round)
        index = torch.from_numpy(places.reshape(rows.shape))
        found = tree_map(lambda part: part[index].to(self.device), (inputs, targets))
        return found[0], found[1]

    def _transformed(self, inputs: Tree, rows: Rows, round: int) -> Tree:
        assert self.transform is not None
        clients, within = self.owners(rows)
        known = clients if self.numbers is None else self.numbers[clients]
        changed = []
        for i, (client, place) in enumerate(zip(known.tolist(), within.tolist(), strict=True)):
            seed = number(self.seed, "augment", round, client, place)
            changed.append(self.transform(at(inputs, i), torch.Generator().manual_seed(seed)))
        return stacked(changed, "the task's transform")


# --- sources


@dataclass(frozen=True)
class Arrays:
    """numpy arrays, in memory or on disk."""

    inputs: Tree
    targets: Tree

    def __post_init__(self) -> None:
        sizes = set()
        for part in leaves((self.inputs, self.targets)):
            if not isinstance(part, np.ndarray):
                raise UserError(
                    "from_arrays takes numpy arrays, or tuples and dicts of them, got a "
                    f"{type(part).__name__}; ClientData.from_groups takes tensors"
                )
            sizes.add(len(part))
        if len(sizes) != 1:
            raise UserError(
                f"arrays of inputs and targets have {', '.join(map(str, sorted(sizes)))} rows; "
                "there must be one of each per example"
            )

    def __len__(self) -> int:
        return len(first_leaf(self.inputs))

    def read(self, rows: Rows) -> tuple[Tree, Tree]:
        found = tree_map(
            lambda part: torch.from_numpy(np.array(part[rows])), (self.inputs, self.targets)
        )
        return found[0], found[1]


@dataclass(frozen=True)
class Items:
    """A Dataset whose items are pairs of inputs and target."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, rows: Rows) -> tuple[Tree, Tree]:
        pairs = [self.dataset[row] for row in rows.tolist()]
        for row, pair in zip(rows.tolist(), pairs, strict=True):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise UserError(
                    f"item {row} of the task's dataset must be a pair of inputs and target, got a "
                    f"{type(pair).__name__}"
                )
        inputs = stacked([pair[0] for pair in pairs], "the task's dataset")
        return inputs, stacked([pair[1] for pair in pairs], "the task's dataset")


@dataclass(frozen=True)
class Columns:
    """Columns of a Hugging Face dataset: one, or several by their names."""

    dataset: Any
    inputs: str | tuple[str, ...]
    targets: str | tuple[str, ...]

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, rows: Rows) -> tuple[Tree, Tree]:
        batch = self.dataset[rows.tolist()]
        return self._taken(batch, self.inputs), self._taken(batch, self.targets)

    def _taken(self, batch: Any, names: str | tuple[str, ...]) -> Tree:
        if isinstance(names, str):
            return as_tensor(batch[names], names)
        return {name: as_tensor(batch[name], name) for name in names}


def stacked(examples: list[Any], where: str) -> Tree:
    """Examples as one; arrays and numbers become tensors. A tuple stays one."""
    try:
        found = default_collate(examples)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"examples of {where} do not go into one batch: {reason}") from error
    return tuple(found) if isinstance(examples[0], tuple) else found


def as_tensor(column: Any, name: str) -> torch.Tensor:
    if isinstance(column, torch.Tensor):
        return column
    try:
        return torch.as_tensor(np.asarray(column))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"the dataset's column {name!r} does not become a tensor: {error}; its rows must be "
            "numbers of one shape, so pad sequences and turn texts into tokens first (dataset.map)"
        ) from error


# --- what a task says


def from_arrays(
    inputs: Tree,
    targets: Tree,
    client_of: NDArray[Any],
    *,
    transform: Transform | None = None,
    seed: int = 0,
) -> StoredData:
    """Arrays that may be larger than memory, as `np.load(file, mmap_mode="r")` opens them."""
    return _stored(Arrays(inputs, targets), client_of, transform, seed)


def from_dataset(
    dataset: Any, client_of: NDArray[Any], *, transform: Transform | None = None, seed: int = 0
) -> StoredData:
    """A map-style `torch.utils.data.Dataset`, and the number of the client that owns each index."""
    _check_dataset(dataset, "from_dataset")
    return _stored(Items(dataset), client_of, transform, seed)


def from_datasets(
    datasets: Sequence[Any], *, transform: Transform | None = None, seed: int = 0
) -> StoredData:
    """A map-style Dataset for each client."""
    for dataset in datasets:
        _check_dataset(dataset, "from_datasets")
    sizes = [len(dataset) for dataset in datasets]
    if 0 in sizes or not sizes:
        raise UserError(
            "from_datasets takes a dataset for each client, got none"
            if not sizes
            else f"the dataset of client {sizes.index(0)} is empty; leave it out"
        )
    joined: Any = torch.utils.data.ConcatDataset(list(datasets))
    return _stored(Items(joined), np.repeat(np.arange(len(sizes)), sizes), transform, seed)


def from_hugging_face(
    dataset: Any,
    *,
    client: str,
    inputs: str | Sequence[str],
    targets: str | Sequence[str],
    transform: Transform | None = None,
    seed: int = 0,
) -> StoredData:
    """A `datasets.Dataset`: `client` names the column that says whose a row is, of any type.

    inputs, targets: the name of a column; or a list of them, which become a dict.
    """
    known = list(getattr(dataset, "column_names", None) or [])
    if not known or isinstance(getattr(dataset, "column_names", None), dict):
        raise UserError(
            f"from_hugging_face takes a datasets.Dataset, got a {type(dataset).__name__}; "
            'of several splits give one, as dataset["train"]'
        )
    ours, theirs = (one if isinstance(one, str) else tuple(one) for one in (inputs, targets))
    for name in (client, *([ours] if isinstance(ours, str) else ours),
                 *([theirs] if isinstance(theirs, str) else theirs)):  # fmt: skip
        if name not in known:
            raise UserError(f"the dataset has no column {name!r}; it has {', '.join(known)}")
    names = np.asarray(dataset.with_format(None)[client][:])
    owners = np.unique(names, return_inverse=True)[1]
    return _stored(Columns(dataset, ours, theirs), owners, transform, seed)


def _stored(
    source: Source, client_of: NDArray[Any], transform: Transform | None, seed: int
) -> StoredData:
    order, offsets = grouped(client_of, len(source))
    return StoredData(source, order, offsets, transform, seed)


def _check_dataset(dataset: Any, function: str) -> None:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UserError(
            f"{function} takes a dataset with __len__ and __getitem__, got a "
            f"{type(dataset).__name__}; examples must be found by their number"
        )
