"""Clients by the million: a rule says which examples each has, and nothing is kept for any of them.

Clients share a pool of examples. The rule is a function of arrays, from the numbers of clients and
the places of their examples to rows of the pool; it must give the same whenever it is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fetchsgd.errors import UserError
from fetchsgd.tasks.base import Clients
from fetchsgd.tasks.checks import check_tensors
from fetchsgd.trees import Tree, at, first_leaf, tree_map

Numbers = NDArray[np.int64]
Rule = Callable[[Numbers, Numbers], Numbers]  # of clients and places, both of one shape


@dataclass(frozen=True)
class RuledData(Clients):
    """Examples of `num` clients, `each` of every one. Row c * each + i is example i of client c.

    first: the number that the first client has in the rule.

    >>> letters = torch.arange(26.0)[:, None]
    >>> data = from_rule(letters, letters, lambda client, place: (client + place) % 26, 10**9, 3)
    >>> rows, sizes = data.rows(np.array([25, 999_999_999]))
    >>> data.read(rows)[0].squeeze(2).tolist()
    [[25.0, 0.0, 1.0], [11.0, 12.0, 13.0]]
    """

    inputs: Tree
    targets: Tree
    rule: Rule
    num: int
    each: int
    first: int = 0

    def __post_init__(self) -> None:
        check_tensors(self.inputs, self.targets)
        for name, value in (("clients", self.num), ("each", self.each)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name} must be a whole number of at least 1, got {value!r}")
        self._pool_rows(np.array([0, self.num - 1]), np.array([0, self.each - 1]))

    @property
    def num_clients(self) -> int:
        return self.num

    @property
    def sizes(self) -> Numbers:
        return np.broadcast_to(np.int64(self.each), (self.num,))

    @property
    def equal_sizes(self) -> bool:
        return True

    def firsts(self, cohort: Numbers) -> Numbers:
        return cohort * self.each

    def sizes_of(self, cohort: Numbers) -> Numbers:
        return np.full(len(cohort), self.each)

    def owners(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        return rows // self.each, rows % self.each

    @property
    def device(self) -> torch.device:
        return first_leaf(self.inputs).device

    def to(self, device: torch.device) -> RuledData:
        inputs, targets = (
            tree_map(lambda part: part.to(device), tree) for tree in (self.inputs, self.targets)
        )
        return replace(self, inputs=inputs, targets=targets)

    def only(self, client: int) -> RuledData:
        return replace(self, num=1, first=self.first + client)

    def read(self, rows: Numbers, round: int = 0) -> tuple[Tree, Tree]:  # noqa: ARG002
        index = torch.from_numpy(self._pool_rows(*self.owners(rows)))
        index = index.to(self.device, non_blocking=True)
        return at(self.inputs, index), at(self.targets, index)

    def _pool_rows(self, clients: Numbers, places: Numbers) -> Numbers:
        rows = np.asarray(self.rule(clients + self.first, places))
        pool = len(first_leaf(self.inputs))
        if rows.shape != clients.shape or rows.dtype.kind not in "iu":
            raise UserError(
                "the rule must give a whole number for each client and place, got "
                f"{rows.dtype} of shape {rows.shape} for arrays of shape {clients.shape}"
            )
        if rows.size and not 0 <= rows.min() <= rows.max() < pool:
            raise UserError(
                f"the rule must give rows of the pool, 0 to {pool - 1}, got {rows.min()} to "
                f"{rows.max()}"
            )
        return rows.astype(np.int64, copy=False)


def from_rule(inputs: Tree, targets: Tree, rule: Rule, clients: int, each: int) -> RuledData:
    """Clients who share a pool of examples, by a rule and without a list.

    Args:
        inputs, targets: the pool, as for `ClientData`.
        rule: from arrays of clients and of places, 0 to each - 1, to an array of rows of the pool.
        clients: how many there are, from 0 on; any number.
        each: how many examples a client has.
    """
    return RuledData(inputs, targets, rule, clients, each)
