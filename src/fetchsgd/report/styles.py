"""How each method looks, on the page and in the figures.

The colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart.
Shapes and dashes say the same once more, for print in black and white.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """A method's name and looks; `dash` is in points, on and off, and empty for a solid line."""

    label: str
    light: str  # the colour on white
    dark: str  # the colour on black
    marker: str  # a name that both `page.js` and MATPLOTLIB_MARKERS know
    dash: tuple[float, ...]


MATPLOTLIB_MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "cross": "X",
    "down": "v",
    "plus": "P",
}

_KNOWN = {
    "fetchsgd": Style("FetchSGD", "#0072B2", "#56B4E9", "circle", ()),
    "local_topk": Style("Local top-k", "#D55E00", "#E8813A", "square", (7, 3)),
    "fedavg": Style("FedAvg", "#009E73", "#2FBF95", "triangle", (2, 3)),
    "true_topk": Style("True top-k", "#CC79A7", "#DB97BD", "diamond", (8, 3, 2, 3)),
    "uncompressed": Style("Uncompressed", "#3A3A3A", "#D8D8D8", "cross", (12, 4)),
}

_SPARE = (
    ("#E69F00", "#E69F00", "down", (4, 2)),
    ("#56B4E9", "#8CCBF0", "plus", (9, 3, 2, 3, 2, 3)),
)


def method_styles(methods: Iterable[str]) -> dict[str, Style]:
    """The looks of these methods, in the order in which they are listed."""
    ordered = sorted(set(methods), key=method_order)
    others = [method for method in ordered if method not in _KNOWN]
    styles = {method: _KNOWN[method] for method in ordered if method in _KNOWN}
    for index, method in enumerate(others):
        styles[method] = Style(method, *_SPARE[index % len(_SPARE)])
    return styles


def method_order(method: str) -> tuple[int, str]:
    """Sorts the methods of the paper first, in its order, and then all others by name."""
    known = list(_KNOWN)
    return (known.index(method) if method in _KNOWN else len(known)), method
