"""Sums of groups, each a secure sum of its own: robust merging where no single reply is seen.

A group has its own graph, keys and threshold, so what the protocol costs is counted group by group,
and its sum is opened by itself. Of each group the server then has one mean, which the rule merges
(fetchsgd.robust). One step serves all groups: the median of what their sums ask for, so that a
minority cannot make it useless for the others.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from fetchsgd.robust import Merger
from fetchsgd.sums import ModularRound, Opened
from fetchsgd.sums.layout import Layout
from fetchsgd.sums.modular import ProtocolBytes


class GroupSums:
    """Of one round, which the merger has opened."""

    def __init__(self, merger: Merger, layout: Layout) -> None:
        self.merger, self.layout = merger, layout
        self.sums: dict[int, Int64[Tensor, " cells"]] = {}
        self.weights: dict[int, int] = {}
        self.members: dict[int, list[int]] = {}

    def largest(self, clients: int) -> int:
        """How many are in a sum: what a client may add to it follows from that."""
        return -(-clients // self.merger.groups.most)

    def add(self, client: int, levels: Int64[Tensor, " cells"], examples: int) -> None:
        """What a client sends, and what it weighs."""
        group = self.merger.groups.of(client)
        self.sums[group] = self.sums[group] + levels if group in self.sums else levels
        self.weights[group] = self.weights.get(group, 0) + examples
        self.members.setdefault(group, []).append(client)

    def opened(self, quantiser: ModularRound) -> Opened:
        """What the rule makes of the sums; those that say nothing yet are left out."""
        order = sorted(self.sums)
        found = [
            quantiser.open(self.sums[g], self.weights[g], self.layout, len(self.members[g]))
            for g in order
        ]
        for group, one in zip(order, found, strict=True):
            if bool(one.seen.usable):
                self.merger.put(group, self.members[group], one.mean)
        seen = found[0].seen._replace(
            next_step=torch.stack([one.seen.next_step for one in found]).median(),
            wrap_probability=torch.stack([one.seen.wrap_probability for one in found]).mean(),
            usable=torch.stack([one.seen.usable for one in found]).any(),
        )
        wraps = torch.stack([one.wraps for one in found]).sum()
        mean = self.merger.mean().flatten()
        self.merger.close()
        return Opened(mean, seen, wraps, len(found) * self.layout.cells)

    def protocol(self, quantiser: ModularRound) -> ProtocolBytes | None:
        """Bytes of secure aggregation of all groups; None where one is too small for it."""
        up = down = 0
        for members in self.members.values():
            found = quantiser.settings.protocol(len(members), self.layout.cells)
            if found is None:
                return None
            up, down = up + found.up, down + found.down
        return ProtocolBytes(up, down)
