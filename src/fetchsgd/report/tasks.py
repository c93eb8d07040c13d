"""Tasks: runs that may be compared with each other, and the frontier of each method among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fetchsgd.report.errors import ReportError
from fetchsgd.report.pareto import frontier
from fetchsgd.report.runs import METRICS, Run
from fetchsgd.report.styles import method_order


@dataclass(frozen=True)
class Task:
    """The runs of one task, by method and then by growing compression."""

    name: str
    metric: str
    higher_is_better: bool
    runs: tuple[Run, ...]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(run.method for run in self.runs))

    def frontier_of(self, method: str, kind: str) -> list[Run]:
        """The frontier of a method in the figure of this kind of compression."""
        drawn = [run for run in self.runs if run.method == method and run.can_be_drawn(kind)]
        points = [(run.compression[kind] or 0.0, run.value or 0.0) for run in drawn]
        return [drawn[index] for index in frontier(points, self.higher_is_better)]

    def in_front(self, kind: str) -> set[int]:
        """The positions in `runs` of all that are on their method's frontier."""
        front = {id(run) for method in self.methods for run in self.frontier_of(method, kind)}
        return {index for index, run in enumerate(self.runs) if id(run) in front}


def group_by_task(runs: Iterable[Run]) -> list[Task]:
    """One task after the other, by name."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.task, []).append(run)
    return [_task(name, groups[name]) for name in sorted(groups)]


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """The settings in which these runs are not all the same, in the order of the config."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return [
        key for key in keys if any(_setting(run, key) != _setting(runs[0], key) for run in runs)
    ]


def _setting(run: Run, key: str) -> tuple[bool, object]:
    return key in run.settings, run.settings.get(key)


def _task(name: str, runs: list[Run]) -> Task:
    metric = next((run.metric for run in runs if run.metric), "accuracy")
    for run in runs:
        if run.metric not in (metric, None):
            raise ReportError(
                f"{run.folder}: the field 'metric' is {run.metric!r}, "
                f"but other runs of the task {name!r} have {metric!r}"
            )
    better = next((run.higher_is_better for run in runs if run.metric), METRICS["accuracy"])
    return Task(name, metric, better, tuple(sorted(runs, key=_rank)))


def _rank(run: Run) -> tuple[tuple[int, str], float, str]:
    compression = run.compression["overall"]
    last = float("inf")
    return method_order(run.method), last if compression is None else compression, run.name
