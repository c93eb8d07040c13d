"""How much fits into a message of so many bytes: cells, coordinates, and levels of a step.

All sizes are the most that a message can take, so what fits does so whatever the numbers are like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from fetchsgd.quantisers import Quantiser, SharedStep, Step
from fetchsgd.quantisers.shared_step import DENSITIES, NORMAL_SIZE
from fetchsgd.quantisers.step import most_entropy
from fetchsgd.sums import Modular
from fetchsgd.sums.layout import Layout
from fetchsgd.wire.sizes import HEADER_BYTES, position_bytes

WIDEST = 0.5  # cells of a table of few levels per weight of the model
CELL_BITS = 0.25  # the least that such a cell is worth, while the table can be narrower
TABLES = 400  # bytes for the tables of the entropy coder
DENSER = 2.0
FINEST = 2.0**-6  # of all taus: a squared error of 4e-5, below which nothing matters


def largest(size: Callable[[int], float], limit: float, most: int) -> int:
    """The largest whole number up to `most` of which the size is within the limit, or 0.

    Sizes grow, but for that of `most`.

    >>> largest(lambda cells: 64 + 4 * cells, 1000, most=10_000)
    234
    """
    if size(most) <= limit:  # of all coordinates nobody has to say which
        return most
    low, high = 0, most - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(middle) <= limit else (low, middle - 1)
    return low


def level_options(quantiser: Step | SharedStep, count: int, bytes: int) -> dict[str, Any]:
    """With which so many numbers fit: as fine as they may be, and a cap for what is longer."""
    bits = 8 * (bytes - HEADER_BYTES) / count
    if isinstance(quantiser, SharedStep):
        return {"density": _density(bits), "bytes": bytes}
    return {"tau": _finest(bits), "bytes": bytes}


def _finest(bits: float) -> float:
    """From which tau on a client looks for the step that fits: a power of two.

    An eighth of what the worst numbers would need; gradients, with their heavy tails, need less.
    """
    tau = 2.0**12
    while tau > 8 * FINEST and most_entropy(1 / tau) < bits:
        tau /= 2
    return tau / 8


def _density(bits: float) -> float:
    """Twice that of which the worst numbers take so many bits on average, to two digits.

    Gradients need less than the worst numbers, and what is longer all the same meets its cap. Of
    gradients at the beginning of the digits task messages of that density were 0.97 to 0.99 of
    their budget; with half of it 0.83 to 0.96, and at 20x the error of the mean was a third larger.
    """
    low, high = DENSITIES[0], NORMAL_SIZE / FINEST / DENSER
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if most_entropy(middle) <= bits else (low, middle)
    return float(f"{DENSER * low:.2g}")


def cells_of_levels(bytes: int) -> int:
    """As many as have a fair part of a bit each."""
    return max(int(8 * (bytes - HEADER_BYTES - TABLES) / CELL_BITS), 0)


def values_bytes(quantiser: Quantiser, count: int) -> float:
    """Of the values of so many chosen coordinates."""
    if isinstance(quantiser, Step):
        return 1.03 * count * most_entropy(1 / quantiser.tau) / 8 + TABLES
    return quantiser.most_bytes(count)


def place_bytes(dim: int, count: int) -> float:
    """Of saying which coordinates these are: as predicted, and one percent more."""
    return 1.01 * float(position_bytes(dim, torch.tensor([count]))[0]) + 8


def sum_bytes(sums: Modular, numbers: int, cohorts: Iterable[int]) -> float:
    """What a client sends for a sum modulo 2^b, with its keys and shares where it sends these.

    cohorts: how many clients a sum may have. Of one that is too small, as the last of an epoch may
    be, there is no secure sum.
    """
    plain = HEADER_BYTES + sums.fixed_bytes(numbers)
    if not sums.secure:
        return plain
    cells = Layout.of(numbers).cells
    found = {clients: sums.protocol(clients, cells) for clients in cohorts}
    secure = [part.up / clients for clients, part in found.items() if part is not None]
    return max([plain, *secure])
