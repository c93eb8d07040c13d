"""Training curves, thinned to what a figure can show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from fetchsgd.report.runs import Measurement, Run
from fetchsgd.report.traffic import COUNTS


@dataclass(frozen=True)
class Curve:
    """Points of a curve, with the three quantities that may be on the x axis."""

    round: list[int]
    epoch: list[float]
    bytes: dict[str, list[int | None]]  # by count; only counts that the run has
    y: list[float]


@dataclass(frozen=True)
class MeanCurve:
    """A curve of runs that differ in their seed, where all of them were measured."""

    round: list[int]
    bytes: list[float | None]  # None where a run was not counted
    y: list[float]
    low: list[float]
    high: list[float]


def metric_curve(run: Run, limit: int = 200) -> Curve:
    """The evaluations; if there are too many, some of them and always the last."""
    points = [(line, line.metric) for line in run.curve if line.metric is not None]
    step = -(-len(points) // limit) or 1
    return _curve(points[::-step][::-1])


def loss_curve(run: Run, limit: int = 200) -> Curve:
    """The training loss; if there are too many lines, means over neighbours."""
    points = [(line, line.train_loss) for line in run.curve if line.train_loss is not None]
    return _curve(_thinned(points, limit))


def diagnostic_curve(run: Run, name: str, limit: int = 200) -> Curve:
    """The same for a diagnostic."""
    lines = [line for line in run.curve if name in line.diagnostics]
    return _curve(_thinned([(line, line.diagnostics[name]) for line in lines], limit))


def mean_curve(
    runs: Sequence[Run], count: str, curve_of: Callable[[Run], Curve] = metric_curve
) -> MeanCurve:
    """The mean of the metric, of the bytes sent by this count, and the range of the metric."""
    curves = [curve_of(run) for run in runs]
    places = [{number: place for place, number in enumerate(curve.round)} for curve in curves]
    rounds = [number for number in curves[0].round if all(number in own for own in places)]
    rows = [[own[number] for own in places] for number in rounds]  # a place in each curve
    values = [[curve.y[at] for curve, at in zip(curves, row, strict=True)] for row in rows]
    sent = [
        [
            curve.bytes[count][at]
            for curve, at in zip(curves, row, strict=True)
            if count in curve.bytes
        ]
        for row in rows
    ]
    return MeanCurve(
        round=rounds,
        bytes=[_mean_or_none(numbers, len(runs)) for numbers in sent],
        y=[fmean(own) for own in values],
        low=[min(own) for own in values],
        high=[max(own) for own in values],
    )


Point = tuple[Measurement, float]


def _thinned(points: Sequence[Point], limit: int) -> list[Point]:
    """At most `limit` points: means over as many neighbours as needed."""
    step = -(-len(points) // limit) or 1
    groups = [points[start : start + step] for start in range(0, len(points), step)]
    # Divided before they are added: losses that diverge may be near the largest float.
    means = [sum(number / len(group) for _, number in group) for group in groups]
    return [(group[-1][0], mean) for group, mean in zip(groups, means, strict=True)]


def _mean_or_none(numbers: Sequence[int | None], needed: int) -> float | None:
    known = [number for number in numbers if number is not None]
    return fmean(known) if len(known) == needed else None


def _curve(points: Sequence[Point]) -> Curve:
    lines = [line for line, _ in points]
    return Curve(
        round=[line.round for line in lines],
        epoch=[line.epoch for line in lines],
        bytes={
            count: [line.bytes_sent.get(count) for line in lines]
            for count in COUNTS
            if any(count in line.bytes_sent for line in lines)
        },
        y=[y for _, y in points],
    )
