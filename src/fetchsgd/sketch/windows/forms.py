"""The two forms of a sliding window: all suffixes, or a histogram of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float32
from torch import Tensor

from fetchsgd.sketch.checks import check_whole_number
from fetchsgd.sketch.count_sketch import CountSketch, Table
from fetchsgd.sketch.windows.heavy import Found, Suffixes, clear, find_heavy, update
from fetchsgd.sketch.windows.pruning import most_sketches, survivors


@dataclass(frozen=True)
class SlidingWindow(ABC):
    """Insert, FindHeavy and Update (appendix B, "Implementation"). Holds no tables itself."""

    sketch: CountSketch
    window: int  # I

    def __post_init__(self) -> None:
        check_whole_number("window", self.window, 1)

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many tables a state has."""

    @abstractmethod
    def init(self, device: torch.device | str = "cpu") -> Suffixes:
        """Before the first round."""

    @abstractmethod
    def insert(self, held: Suffixes, table: Table) -> Suffixes:
        """Add a gradient's sketch to all, start a new one with it, and drop what is too old."""

    def find_heavy(self, held: Suffixes, k: int, tau: float = 0.0) -> Found:
        """The k largest estimates of the union, of those with |U| >= tau * l2 in their sketch."""
        return find_heavy(self.sketch, held, k, tau)

    def update(
        self, held: Suffixes, found: Found, given: Float32[Tensor, " n"] | None = None
    ) -> Suffixes:
        """Take what was found, or what was given of it, out of every sketch that holds it."""
        return update(self.sketch, held, found, given)

    def clear(self, held: Suffixes, cells: Bool[Tensor, "rows cols"], left: Tensor) -> Suffixes:
        """Set these cells of every sketch to what is left there."""
        return clear(held, cells, left)


@dataclass(frozen=True)
class Overlapping(SlidingWindow):
    """I sketches, each cleared every I rounds, one after another (figure 2 of the paper).

    Ages are a permutation of 1 to I. In the first rounds several sketches hold all there is.
    """

    @property
    def slots(self) -> int:
        return self.window

    def init(self, device: torch.device | str = "cpu") -> Suffixes:
        tables = self.sketch.zeros(device).repeat(self.window, 1, 1)
        return Suffixes(tables, torch.arange(1, self.window + 1, device=device))

    def insert(self, held: Suffixes, table: Table) -> Suffixes:
        """Nothing here waits for the device."""
        ages = held.ages % self.window + 1
        tables = held.tables + table
        tables.index_copy_(0, ages.argmin(dim=0, keepdim=True), table[None])
        return Suffixes(tables, ages)


@dataclass(frozen=True)
class Histogram(SlidingWindow):
    """A new sketch every round, and pruning on ages and norms (pruning.py)."""

    eps: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.eps < 1:
            raise ValueError(f"eps must be above 0 and below 1, got {self.eps}")

    @property
    def slots(self) -> int:
        return most_sketches(self.window, self.eps)

    def init(self, device: torch.device | str = "cpu") -> Suffixes:
        tables = self.sketch.zeros(device).repeat(self.slots, 1, 1)
        return Suffixes(tables, torch.zeros(self.slots, dtype=torch.int64, device=device))

    def insert(self, held: Suffixes, table: Table) -> Suffixes:
        """Waits for the device: norms decide what is kept."""
        before = held.oldest_first()
        tables = torch.zeros_like(held.tables)
        for slot, _ in before:
            torch.add(held.tables[slot], table, out=tables[slot])
        norms = [self.sketch.l2(tables[slot]) for slot, _ in before] + [self.sketch.l2(table)]
        ages = [age + 1 for _, age in before] + [1]
        *kept, _ = survivors(ages, norms, self.window, self.eps)  # the new one always stays
        age_of = {before[place][0]: ages[place] for place in kept}
        dropped = [slot for slot, _ in before if slot not in age_of]
        tables[dropped] = 0.0
        free = min(set(range(self.slots)) - set(age_of))
        tables[free], age_of[free] = table, 1
        new_ages = [age_of.get(slot, 0) for slot in range(self.slots)]
        return Suffixes(tables, torch.tensor(new_ages, device=table.device))
