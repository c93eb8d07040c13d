"""Training curves, thinned to what a figure can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fetchsgd.report.runs import Measurement, Run
from fetchsgd.report.traffic import COUNTS


@dataclass(frozen=True)
class Curve:
    """Points of a curve, with the three things that may be on the x axis."""

    round: list[int]
    epoch: list[float]
    bytes: dict[str, list[int | None]]  # by count, without a count that the run does not know
    y: list[float]


def metric_curve(run: Run, limit: int = 200) -> Curve:
    """The evaluations; if there are too many, some of them and always the last."""
    points = [(line, line.metric) for line in run.curve if line.metric is not None]
    step = -(-len(points) // limit) or 1
    return _curve(points[::-step][::-1])


def loss_curve(run: Run, limit: int = 200) -> Curve:
    """The training loss; if there are too many lines, the means of as many neighbours as needed."""
    points = [(line, line.train_loss) for line in run.curve if line.train_loss is not None]
    step = -(-len(points) // limit) or 1
    groups = [points[start : start + step] for start in range(0, len(points), step)]
    # Divided before they are added: losses that diverge may be near the largest float.
    means = [sum(loss / len(group) for _, loss in group) for group in groups]
    return _curve([(group[-1][0], mean) for group, mean in zip(groups, means, strict=True)])


def _curve(points: Sequence[tuple[Measurement, float]]) -> Curve:
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
