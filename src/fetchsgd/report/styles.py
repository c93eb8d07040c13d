"""How each series looks, on the page and in the figures.

The colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart.
Markers and dashes differ as well, for print in black and white. A method's low-bit series
has its hue in another lightness, a hollow marker, and its own dash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fetchsgd.report.settings import Series
from fetchsgd.runs.older import PAPERS_FORM


@dataclass(frozen=True)
class Look:
    """Colours and line of a series; `dash` is in points, on and off, and empty if solid."""

    light: str  # the colour on white
    dark: str  # the colour on black
    dash: tuple[float, ...]


@dataclass(frozen=True)
class Style:
    """The name of a series and of its method, its look and its marker."""

    label: str
    method: str
    look: Look
    marker: str  # a name that both `svg.js` and MATPLOTLIB_MARKERS know
    hollow: bool


@dataclass(frozen=True)
class _Family:
    """A method's two series."""

    label: str
    marker: str
    plain: Look
    low_bit: Look
    low_bit_label: str = ""  # where the method's own name would be wrong


MATPLOTLIB_MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "cross": "X",
    "pentagon": "p",
    "down": "v",
    "plus": "P",
}

_KNOWN = {
    "fetchsgd": _Family(
        *("FetchSGD", "circle"),
        Look("#0072B2", "#56B4E9", ()),
        Look("#0B3C6F", "#BCE1F8", (6, 2)),
    ),
    PAPERS_FORM: _Family(
        *("FetchSGD (paper)", "pentagon"),
        Look("#56B4E9", "#2F8FD0", (5, 2)),
        Look("#2A7DAE", "#7FA8C4", (5, 2, 1, 2)),
    ),
    "local_topk": _Family(
        *("Local top-k", "square"),
        Look("#D55E00", "#E8813A", (7, 3)),
        Look("#8A2F00", "#FFC9A3", (7, 3, 1, 3, 1, 3)),
    ),
    "fedavg": _Family(
        *("FedAvg", "triangle"),
        Look("#009E73", "#2FBF95", (2, 3)),
        Look("#00543D", "#A6EBD3", (2, 3, 2, 7)),
    ),
    "true_topk": _Family(
        *("True top-k", "diamond"),
        Look("#CC79A7", "#DB97BD", (8, 3, 2, 3)),
        Look("#87386A", "#F6D5E7", (4, 3, 1, 3)),
    ),
    "uncompressed": _Family(
        *("Uncompressed", "cross"),
        Look("#3A3A3A", "#D8D8D8", (12, 4)),
        Look("#7A7A7A", "#969696", (12, 4, 4, 4)),
        "SGD, low-bit",
    ),
}

_SPARE = (
    ("down", Look("#E69F00", "#E69F00", (4, 2)), Look("#8A5F00", "#FFDC94", (4, 2, 1, 2))),
    (
        *("plus", Look("#7B5EA7", "#B49BDB", (9, 3, 2, 3, 2, 3))),
        Look("#46307A", "#DCCFF2", (9, 3, 1, 3, 1, 3, 1, 3)),
    ),
)


def series_styles(series: Iterable[Series]) -> dict[Series, Style]:
    """The looks of these series, in the order in which they are listed."""
    ordered = sorted(set(series), key=series_order)
    others = list(dict.fromkeys(one.method for one in ordered if one.method not in _KNOWN))
    spare = {
        method: _Family(method, *_SPARE[index % len(_SPARE)]) for index, method in enumerate(others)
    }
    families = {**_KNOWN, **spare}
    return {one: _style(families[one.method], one.low_bit) for one in ordered}


def series_order(series: Series) -> tuple[int, str, bool]:
    """Sorts the methods of the paper first, then others by name; low-bit follows its method."""
    known = list(_KNOWN)
    place = known.index(series.method) if series.method in _KNOWN else len(known)
    return place, series.method, series.low_bit


def _style(family: _Family, low_bit: bool) -> Style:
    if low_bit:
        label = family.low_bit_label or f"{family.label}, low-bit"
        return Style(label, family.label, family.low_bit, family.marker, hollow=True)
    return Style(family.label, family.label, family.plain, family.marker, hollow=False)
