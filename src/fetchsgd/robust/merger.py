"""Replies into sums of groups, and those into one update that a minority of liars cannot steer.

Memory is groups x numbers, however large the cohort. Three defences, one after the other:

    a reply longer than usual is scaled down to the running median of norms
    so is the mean of a group, to the median over groups: in the first round nothing is usual yet
    a rule merges the means of groups (rules.py), and every group counts the same

So what a client claims to count, such as examples, counts within its group alone. Where the server
sees sums of groups and no reply (secure aggregation), the first defence is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median_low
from typing import Any

import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from fetchsgd.robust.groups import Groups
from fetchsgd.robust.record import Record
from fetchsgd.robust.rules import Row, Rows, Rule, Vetted, Vetting

ROUNDS = 10  # that the usual norm looks back on
TINY = 1e-30


class Merger:
    """Merges one round after another. `shape`: of what a client sends, once it is read.

    smallest: clients in a group; a small cohort has fewer groups instead.
    """

    def __init__(
        self,
        rule: Rule,
        shape: tuple[int, ...],
        seed: int,
        device: torch.device,
        smallest: int = 1,
    ) -> None:
        self.rule, self.shape, self.seed, self.device = rule, shape, seed, device
        self.smallest = smallest
        self.recent: deque[float] = deque(maxlen=ROUNDS)  # median norms of the last rounds
        self.record = Record()  # of clients, for rules that go by one
        self.shortened = self.left_out = 0  # replies and groups since the last line
        self.open(0, [])

    def open(self, round: int, cohort: Sequence[int]) -> None:
        """A round without replies, for which these clients are asked first."""
        most = self.rule.groups
        if self.smallest > 1:
            most = min(most, max(len(cohort) // self.smallest, 1))
        self.groups = Groups(self.seed, round, cohort, most)
        self.sums: dict[int, Float64[Tensor, " numbers"]] = {}
        self.weights: dict[int, float] = {}
        self.members: dict[int, list[int]] = {}
        self.norms: list[float] = []
        self.seen: Vetting | None = None  # what this round adds to the record

    @property
    def usual(self) -> float:
        """The norm that most replies do not exceed by much; 0 before the first round."""
        return median_low(self.recent) if self.recent else 0.0

    def add(self, client: int, numbers: Tensor, weight: float) -> None:
        """A reply, and what it counts within its group."""
        group = self.groups.of(client)
        self.members.setdefault(group, []).append(client)
        row = numbers.to(self.device, torch.float64).flatten()
        norm = float(row.norm())
        self.norms.append(norm)
        most = self.rule.clip * self.usual
        is_long = 0 < most < norm
        self.shortened += is_long
        part = most / norm if is_long else 1.0
        if group not in self.sums:
            self.sums[group] = torch.zeros_like(row)
        self.sums[group].add_(row, alpha=weight * part)
        self.weights[group] = self.weights.get(group, 0.0) + weight

    def put(self, group: int, clients: Sequence[int], mean: Tensor) -> None:
        """A group of which the server sees the mean alone."""
        row = mean.to(self.device, torch.float64).flatten()
        self.norms.append(float(row.norm()))
        self.sums[group], self.weights[group] = row, 1.0
        self.members[group] = list(clients)

    def mean(self) -> Float32[Tensor, ...]:
        """What the rule makes of the groups that have replies which count."""
        order = [group for group in sorted(self.sums) if self.weights[group] > 0]
        if not order:
            return torch.zeros(self.shape, device=self.device)
        rows = torch.stack([(self.sums[g] / self.weights[g]).float() for g in order])
        if self.rule.clip:
            norms = rows.norm(dim=1)
            most = self.rule.clip * norms.median()
            rows = rows * (most / norms.clamp(min=TINY)).clamp(max=1)[:, None]
        return self._merged(rows, order).view(self.shape)

    def _merged(self, rows: Rows, order: list[int]) -> Row:
        if not isinstance(self.rule, Vetted):
            return self.rule.merge(rows)
        self.seen = self.rule.vet(rows, [self.members[group] for group in order], self.record)
        return self.seen.merged

    def close(self) -> None:
        """The round is applied: what it showed counts for those that come."""
        if self.norms:
            self.recent.append(median_low(self.norms))
        if self.seen is not None:
            self.record = self.seen.record
            self.left_out += self.seen.left_out
            self.seen = None

    def line(self) -> dict[str, Any]:
        found = {"merge/shortened": self.shortened}
        if isinstance(self.rule, Vetted):
            found["merge/left_out"] = self.left_out
        self.shortened = self.left_out = 0
        return found

    def result(self) -> dict[str, Any]:
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        return {
            "norms": torch.tensor(list(self.recent), dtype=torch.float64),
            **self.record.tensors(),
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.recent = deque(tensors["norms"].tolist(), maxlen=ROUNDS)
        if "clients" in tensors:  # not in what was saved before there were records
            self.record = Record.restored(tensors)
