"""Groups: runs that differ only in their seed are one point in a figure, the mean of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fetchsgd.report.runs import Run
from fetchsgd.report.series import Series


@dataclass(frozen=True)
class Point:
    """Where a group stands in a figure: means, and the range of the value."""

    compression: float
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Group:
    """Runs of the same task, method and settings, by seed."""

    runs: tuple[Run, ...]

    @property
    def series(self) -> Series:
        return self.runs[0].series

    def drawn(self, kind: str, count: str) -> list[Run]:
        """The runs that are averaged: one that diverged has no value to add to a mean."""
        return [run for run in self.runs if run.can_be_drawn(kind, count)]

    def point(self, kind: str, count: str) -> Point | None:
        """Its place in a figure, or None if no run can be drawn there."""
        drawn = self.drawn(kind, count)
        if not drawn:
            return None
        values = [run.value or 0.0 for run in drawn]
        ratios = [run.compression(kind, count) or 0.0 for run in drawn]
        return Point(fmean(ratios), fmean(values), min(values), max(values))


def group_by_seed(runs: Iterable[Run]) -> list[Group]:
    """The groups in the order of their first runs."""
    groups: dict[Hashable, list[Run]] = {}
    for run in runs:
        settings = frozenset((key, _hashable(value)) for key, value in run.settings.items())
        groups.setdefault((run.task, run.method, settings), []).append(run)
    return [Group(tuple(sorted(group, key=_by_seed))) for group in groups.values()]


def _by_seed(run: Run) -> tuple[int, str]:
    return -1 if run.seed is None else run.seed, run.name


def _hashable(value: Any) -> Hashable:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
