"""Tasks: runs that may be compared with each other, and the frontier of each series among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fetchsgd.report.errors import ReportError
from fetchsgd.report.pareto import frontier
from fetchsgd.report.runs import FINISHED, METRICS, Run
from fetchsgd.report.seeds import Group, group_by_seed
from fetchsgd.report.series import DEPENDENT, Series
from fetchsgd.report.styles import series_order
from fetchsgd.report.traffic import PAPER, WIRE


@dataclass(frozen=True)
class Task:
    """The runs of one task by series, then by growing compression; seeds stand together."""

    name: str
    metric: str
    higher_is_better: bool
    groups: tuple[Group, ...]
    counts: tuple[str, ...]  # those of COUNTS that at least one run knows
    count: str  # the one to look at first

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    @property
    def series(self) -> list[Series]:
        return list(dict.fromkeys(group.series for group in self.groups))

    def frontier_of(self, series: Series, kind: str, count: str) -> list[Group]:
        """The frontier of a series in the figure of this kind of compression by this count."""
        own = [group for group in self.groups if group.series == series]
        drawn = [(group, point) for group in own if (point := group.point(kind, count))]
        # To three digits, as it is told: a hair's breadth more compression is none.
        places = [(float(f"{point.compression:.3g}"), point.value) for _, point in drawn]
        return [drawn[index][0] for index in frontier(places, self.higher_is_better)]

    def in_front(self, kind: str, count: str) -> set[int]:
        """The positions in `groups` of all that are on the frontier of their series."""
        front = {
            id(group) for series in self.series for group in self.frontier_of(series, kind, count)
        }
        return {index for index, group in enumerate(self.groups) if id(group) in front}

    @property
    def has_both_sorts(self) -> bool:
        """Whether runs as in the paper and low-bit runs can be compared on the wire."""
        drawn = [group.series for group in self.groups if group.point("overall", WIRE)]
        return {series.low_bit for series in drawn} == {True, False}


def group_by_task(runs: Iterable[Run]) -> list[Task]:
    """One task after the other, by name."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.task, []).append(run)
    return [_task(name, groups[name]) for name in sorted(groups)]


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """The settings in which these runs are not all the same, in the order of the config."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return [key for key in keys if _differs(key, runs)]


def telling_settings(runs: Sequence[Run], method: str) -> set[str]:
    """What tells a run of the method apart from its others, or from those of other methods.

    That another method does not have an option tells nothing.
    """
    own = differing_settings([run for run in runs if run.method == method])
    common = [key for key in differing_settings(runs) if all(key in run.settings for run in runs)]
    return {*own, *common}


def _differs(key: str, runs: Sequence[Run]) -> bool:
    # That other runs lack what means nothing for them is said by what it depends on.
    compared = [run for run in runs if key in run.settings or key not in DEPENDENT]
    found = [(key in run.settings, run.settings.get(key)) for run in compared]
    return any(one != found[0] for one in found)


def _task(name: str, runs: list[Run]) -> Task:
    metric = next((run.metric for run in runs if run.metric), "accuracy")
    for run in runs:
        if run.metric not in (metric, None):
            raise ReportError(
                f"{run.source}: the field 'metric' is {run.metric!r}, "
                f"but other runs of the task {name!r} have {metric!r}"
            )
    better = next((run.higher_is_better for run in runs if run.metric), METRICS["accuracy"])
    on_the_wire = any(WIRE in run.traffic for run in runs)
    everywhere = all(WIRE in run.traffic for run in runs if run.status == FINISHED)
    count = WIRE if on_the_wire and everywhere else PAPER
    return Task(
        name=name,
        metric=metric,
        higher_is_better=better,
        groups=tuple(sorted(group_by_seed(runs), key=lambda group: _rank(group, count))),
        counts=(WIRE, PAPER) if on_the_wire else (PAPER,),
        count=count,
    )


def _rank(group: Group, count: str) -> tuple[tuple[int, str, bool], float, str]:
    point = group.point("overall", count)
    compression = point.compression if point else float("inf")
    return series_order(group.series), compression, group.runs[0].name
