"""Learning rates over a run.

A schedule is written in epochs of the baseline run. A run of fewer epochs still goes through
the whole of it, compressed in the iteration dimension (section 5 and appendix A of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

KINDS = ("triangular", "linear", "constant", "piecewise")


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a function of baseline epochs.

    triangular: from 0 to `peak` at `pivot` epochs, and back to 0 at the end.
    linear: from `peak` to 0. constant: `peak`.
    piecewise: straight lines between `points`, pairs of epoch and rate.

    >>> schedule = Schedule("triangular", peak=0.4, pivot=1.0)
    >>> [round(schedule.rate(step, steps=4, baseline_epochs=4.0), 3) for step in range(4)]
    [0.2, 0.333, 0.2, 0.067]
    """

    kind: str = "triangular"
    peak: float = 0.1
    pivot: float = 1.0
    points: list[list[float]] = field(default_factory=list)

    def rate(self, step: int, steps: int, baseline_epochs: float) -> float:
        """The rate of round `step` of `steps`, taken at the middle of the round."""
        return self.at((step + 0.5) / steps, baseline_epochs)

    def at(self, share: float, baseline_epochs: float) -> float:
        """The rate when this share of a run is over."""
        epoch = share * baseline_epochs
        corners = self._corners(baseline_epochs)
        for (left, low), (right, high) in pairwise(corners):
            if epoch <= right:
                share = (epoch - left) / (right - left) if right > left else 1.0
                return low + share * (high - low)
        return corners[-1][1]

    def _corners(self, end: float) -> list[list[float]]:
        if self.kind == "triangular":
            return [[0.0, 0.0], [self.pivot, self.peak], [end, 0.0]]
        if self.kind == "linear":
            return [[0.0, self.peak], [end, 0.0]]
        if self.kind == "constant":
            return [[0.0, self.peak], [end, self.peak]]
        return [[0.0, self.points[0][1]], *self.points]
