"""Groups: which runs are one point of a figure, which may be compared, and which are the best.

Runs that differ only in their seed are one group, drawn at their mean. Groups of the same task may
be compared. The paper's figures join, for each method, the points on its Pareto frontier: those
for which no other one both compresses at least as much and is at least as good.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.report.runs import FINISHED, Run
from fetchsgd.report.settings import DECAY, DEPENDENT, Series, decay_may_be
from fetchsgd.report.styles import series_order
from fetchsgd.report.traffic import PAPER, WIRE


@dataclass(frozen=True)
class Point:
    """Where a group is in a figure: means, and the range of the value."""

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


@dataclass(frozen=True)
class Task:
    """The runs of one task, by series and then by growing compression; seeds are together."""

    name: str
    metric: str
    higher_is_better: bool
    groups: tuple[Group, ...]
    counts: tuple[str, ...]  # those of COUNTS that at least one run knows
    count: str  # the one to show first

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    @property
    def series(self) -> list[Series]:
        return list(dict.fromkeys(group.series for group in self.groups))

    @property
    def numbers(self) -> list[int | None]:
        """A number for each group, from 1 on, by which figures tell those of a method apart.

        None where a method has a single group: its name is enough.
        """
        methods = [group.series.method for group in self.groups]
        several = [methods.count(method) > 1 for method in methods]
        return [sum(several[: index + 1]) if own else None for index, own in enumerate(several)]

    @property
    def baselines(self) -> list[float]:
        """The lengths, in epochs, of the uncompressed runs that compression is relative to."""
        found = {run.settings.get("train.baseline_epochs") for run in self.runs}
        return sorted(float(length) for length in found if length)

    @property
    def axis_title(self) -> str:
        if self.metric == "accuracy":
            return "Test accuracy (%)"
        return f"Test {self.metric}" + ("" if self.higher_is_better else " (lower is better)")

    def frontier_of(self, series: Series, kind: str, count: str) -> list[Group]:
        """The frontier of a series in the figure of this kind of compression by this count."""
        own = [group for group in self.groups if group.series == series]
        drawn = [(group, point) for group in own if (point := group.point(kind, count))]
        # To three digits, as it is shown: a tiny gain in compression is none.
        places = [(float(f"{point.compression:.3g}"), point.value) for _, point in drawn]
        return [drawn[index][0] for index in frontier(places, self.higher_is_better)]

    def on_frontier(self, kind: str, count: str) -> set[int]:
        """The positions in `groups` of all that are on the frontier of their series."""
        front = {
            id(group) for series in self.series for group in self.frontier_of(series, kind, count)
        }
        return {index for index, group in enumerate(self.groups) if id(group) in front}

    @property
    def compares_low_bit(self) -> bool:
        """Whether runs as in the paper and low-bit runs can be compared on the wire."""
        drawn = [group.series for group in self.groups if group.point("overall", WIRE)]
        return {series.low_bit for series in drawn} == {True, False}


def group_by_task(runs: Iterable[Run]) -> list[Task]:
    """One task after the other, by name."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.task, []).append(run)
    return [_task(name, groups[name]) for name in sorted(groups)]


def group_by_seed(runs: Iterable[Run]) -> list[Group]:
    """The groups in the order of their first runs."""
    groups: dict[Hashable, list[Run]] = {}
    for run in runs:
        settings = frozenset((key, _hashable(value)) for key, value in run.settings.items())
        groups.setdefault((run.task, run.method, settings), []).append(run)
    return [Group(tuple(sorted(group, key=_by_seed))) for group in groups.values()]


def frontier(points: Sequence[tuple[float, float]], higher_is_better: bool = True) -> list[int]:
    """Which `(compression, value)` points are on the Pareto frontier, by growing compression.

    Equal points do not beat each other: either all of them are on it, or none.

    >>> frontier([(1, 0.9), (10, 0.8), (5, 0.7)])
    [0, 1]
    """
    sign = 1 if higher_is_better else -1
    ranked = sorted(
        ((compression, sign * value, index) for index, (compression, value) in enumerate(points)),
        key=lambda point: (-point[0], -point[1], point[2]),
    )
    kept: list[int] = []
    best = (math.inf, -math.inf)  # the point kept last: all after it compress no more
    for compression, quality, index in ranked:
        if quality > best[1] or (compression, quality) == best:
            best = (compression, quality)
            kept.append(index)
    return sorted(kept, key=lambda index: (points[index][0], index))


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """The settings in which these runs are not all the same, in the order of the config."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return [key for key in keys if _differs(key, runs)]


def distinguishing_settings(runs: Sequence[Run], method: str) -> set[str]:
    """Settings that distinguish a run of the method from its other runs, or from other methods.

    An option that another method does not have distinguishes nothing.
    """
    own = differing_settings([run for run in runs if run.method == method])
    common = [key for key in differing_settings(runs) if all(key in run.settings for run in runs)]
    return {*own, *common}


def _differs(key: str, runs: Sequence[Run]) -> bool:
    if key == DECAY and runs:
        return not set.intersection(*(decay_may_be(run.settings) for run in runs))
    # Where a setting has no effect it is absent, and the one it depends on shows the difference.
    compared = [run for run in runs if key in run.settings or key not in DEPENDENT]
    found = [(key in run.settings, run.settings.get(key)) for run in compared]
    return any(one != found[0] for one in found)


def _task(name: str, runs: list[Run]) -> Task:
    metric = next((run.metric for run in runs if run.metric), "accuracy")
    for run in runs:
        if run.metric not in (metric, None):
            raise UserError(
                f"{run.source}: the field 'metric' is {run.metric!r}, "
                f"but other runs of the task {name!r} have {metric!r}"
            )
    on_the_wire = any(WIRE in run.traffic for run in runs)
    everywhere = all(WIRE in run.traffic for run in runs if run.status == FINISHED)
    count = WIRE if on_the_wire and everywhere else PAPER
    return Task(
        name=name,
        metric=metric,
        higher_is_better=next((run.higher_is_better for run in runs if run.metric), True),
        groups=tuple(sorted(group_by_seed(runs), key=lambda group: _rank(group, count))),
        counts=(WIRE, PAPER) if on_the_wire else (PAPER,),
        count=count,
    )


def _rank(group: Group, count: str) -> tuple[tuple[int, str, bool], float, str]:
    point = group.point("overall", count)
    compression = point.compression if point else float("inf")
    return series_order(group.series), compression, group.runs[0].name


def _by_seed(run: Run) -> tuple[int, str]:
    return -1 if run.seed is None else run.seed, run.name


def _hashable(value: Any) -> Hashable:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
