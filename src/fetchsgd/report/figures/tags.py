"""Numbers beside points and the ends of curves, where a method has several, and what they mean.

The numbers are those of the page's table. A number stands where it covers no marker and no other
number; if there is no such place it is left out, and the page has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from fetchsgd.report.figures.labels import Box, Spot, around, box_of, fits, places_of, write
from fetchsgd.report.groups import Group, Task, differing_settings
from fetchsgd.report.settings import settings_line
from fetchsgd.report.styles import series_styles

MOST = 24  # numbers that a figure explains

_AROUND = (
    *(Spot(6, 0, "left"), Spot(0, 8, "center"), Spot(0, -8, "center"), Spot(-6, 0, "right")),
    *(Spot(5, 6, "left"), Spot(5, -6, "left"), Spot(-5, 6, "right"), Spot(-5, -6, "right")),
    *(Spot(0, 15, "center"), Spot(0, -15, "center"), Spot(10, 12, "left"), Spot(10, -12, "left")),
)
# Curves that end at the same height have their numbers side by side.
_BEHIND = tuple(Spot(dx, dy, "left") for dy in (0, 3, -3, 6, -6) for dx in (6, 15.5, 25, 34.5))


class Tag(NamedTuple):
    """A number, the point that it belongs to, in the figure's numbers, and its colour."""

    number: int
    point: tuple[float, float]
    colour: str
    strong: bool = True


def tagged(task: Task, front: Iterable[int]) -> dict[int, int]:
    """The numbers of groups by their index: all, or those on the frontier if these are too many."""
    numbers = {index: number for index, number in enumerate(task.numbers) if number is not None}
    if len(numbers) <= MOST:
        return numbers
    chosen = set(front)
    return {index: number for index, number in numbers.items() if index in chosen}


def key(task: Task, numbers: dict[int, int]) -> str:
    """What the numbers mean, method by method."""
    if not numbers or len(numbers) > MOST:
        return "Numbers: see the table of the report." if numbers else ""
    styles = series_styles(task.series)
    parts = []
    for series in task.series:
        own = [index for index in numbers if task.groups[index].series == series]
        shown = differing_settings([run for run in task.runs if run.method == series.method])
        told = [f"{numbers[index]}: {_settings(task.groups[index], shown)}" for index in own]
        if told:
            parts.append(f"{styles[series].label} {'; '.join(told)}.")
    left = len([number for number in task.numbers if number is not None]) - len(numbers)
    return "\n".join([*parts, *(["Others: see the table of the report."] if left else [])])


def _settings(group: Group, shown: Sequence[str]) -> str:
    return settings_line(group.runs[0].settings, shown) or group.runs[0].name


def write_tags(
    axes: Axes,
    tags: Sequence[Tag],
    markers: Sequence[tuple[float, float]],
    behind: bool = False,
) -> None:
    """To be called once the axes have their scales, limits and place in the figure.

    behind: rather behind their points than around them.
    """
    spots = (*_BEHIND, *_AROUND) if behind else (*_AROUND, *_BEHIND)
    taken: list[Box] = [around(place) for place in places_of(axes, markers)] if markers else []
    for tag in sorted(tags, key=lambda tag: (not tag.strong, tag.number)):
        place = places_of(axes, [tag.point])[0]
        free = ((spot, box_of(place, spot, str(tag.number))) for spot in spots)
        found = next(((spot, box) for spot, box in free if fits(axes, box, taken)), None)
        if found:
            taken.append(found[1])
            write(axes, tag.point, found[0], str(tag.number), tag.colour)
