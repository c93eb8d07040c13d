"""Numbers beside the ends of frontiers, each where it covers nothing, or left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

_SIZE = 7.5  # of the letters, in points
_ROOM = 3.5  # between a marker and the text beside it

Place = tuple[float, float]  # in points, from the lower left corner of the axes


class Spot(NamedTuple):
    """Where a text is, relative to its point."""

    dx: float
    dy: float
    side: str  # matplotlib's ha: the side of the text on which the point is


_SPOTS = (
    Spot(0, 9.5, "center"),
    Spot(0, -9.5, "center"),
    Spot(6, 0, "left"),
    Spot(-6, 0, "right"),
    Spot(4, 8, "left"),
    Spot(-4, 8, "right"),
    Spot(4, -8, "left"),
    Spot(-4, -8, "right"),
)


@dataclass(frozen=True)
class Frontier:
    """Points of a line as they are drawn, and what to write beside some of them."""

    points: Sequence[tuple[float, float]]
    labels: dict[int, str]
    colour: str


def label_frontiers(axes: Axes, frontiers: Sequence[Frontier]) -> None:
    """To be called once the axes have their scales, limits and place in the figure."""
    places = [places_of(axes, frontier.points) for frontier in frontiers]
    taken = [around(place) for line in places for place in _along(line)]
    for frontier, line in zip(frontiers, places, strict=True):
        for index, words in frontier.labels.items():
            free = ((spot, box_of(line[index], spot, words)) for spot in _SPOTS)
            found = next(((spot, box) for spot, box in free if fits(axes, box, taken)), None)
            if found:
                taken.append(found[1])
                write(axes, frontier.points[index], found[0], words, frontier.colour)


@dataclass(frozen=True)
class Box:
    """What a text or a marker covers, in points."""

    left: float
    right: float
    bottom: float
    top: float

    def overlaps(self, other: Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.bottom < other.top and other.bottom < self.top


def places_of(axes: Axes, points: Sequence[tuple[float, float]]) -> list[Place]:
    inside = axes.transData.transform(points) - axes.bbox.min
    return [(float(x), float(y)) for x, y in inside * 72 / axes.figure.dpi]


def _along(line: Sequence[Place]) -> Iterator[Place]:
    """Points on a line, close enough that no text fits between them."""
    yield line[0]
    for (x, y), (next_x, next_y) in pairwise(line):
        steps = int(np.hypot(next_x - x, next_y - y) / _SIZE) + 1
        for done in (step / steps for step in range(1, steps + 1)):
            yield x + done * (next_x - x), y + done * (next_y - y)


def around(place: Place) -> Box:
    x, y = place
    return Box(x - _ROOM, x + _ROOM, y - _ROOM, y + _ROOM)


def box_of(place: Place, spot: Spot, words: str) -> Box:
    width = 0.62 * _SIZE * len(words)  # a digit is some 0.62 as wide as the letters are high
    x, y = place[0] + spot.dx, place[1] + spot.dy
    left = x - {"left": 0.0, "center": width / 2, "right": width}[spot.side]
    return Box(left, left + width, y - _SIZE / 2, y + _SIZE / 2)


def fits(axes: Axes, box: Box, taken: Sequence[Box]) -> bool:
    width, height = (float(length) * 72 / axes.figure.dpi for length in axes.bbox.size)
    inside = box.left > 0 and box.right < width + 9 and box.bottom > 0 and box.top < height
    return inside and not any(box.overlaps(other) for other in taken)


def write(axes: Axes, point: tuple[float, float], spot: Spot, words: str, colour: str) -> None:
    text = axes.annotate(
        words,
        point,
        (spot.dx, spot.dy),
        textcoords="offset points",
        ha=spot.side,
        va="center",
        fontsize=_SIZE,
        color=colour,
        zorder=5,
        path_effects=[withStroke(linewidth=1.6, foreground="white")],
    )
    text.set_in_layout(False)  # the axes already have their place
