"""How far one client can move a sum of whole levels: rotation, scaling and rounding bounded.

A rotation (signs, and a Hadamard transform) keeps lengths, and a step divides them. Rounding at
random to whole levels does neither: in the worst case each cell moves by almost a level, so that a
short vector of many cells becomes sqrt(cells) long. It hardly ever does, and a client that looks at
its own levels can make sure: it rounds again until they are short enough (conditional rounding,
Kairouz, Liu and Steinke 2021, Section 4). The length is that of whole numbers, so it is exact: no
rounding of floats in a rotation or a clip can be larger than what is accounted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

BETA = math.exp(-0.5)  # the most likely that a client has to round again
ATTEMPTS = 100
SQUARES_FIT = 2.0**31  # the length of levels whose squares' sum is a whole number of 64 bits


def most_squares(clip: float, step: float, count: int, beta: float = BETA) -> int:
    """The most that the squares of a client's levels may sum up to. clip: of the vector, in l2.

    Proposition 22 of Kairouz, Liu and Steinke: rounded at random, a vector stays within this with
    probability 1 - beta at least; or it does in any case.
    """
    length, side = clip / step, math.sqrt(count)
    likely = length**2 + count / 4 + math.sqrt(2 * math.log(1 / beta)) * (length + side / 2)
    # With less than 1 there would be no level but zero.
    return max(math.floor(min(likely, (length + side) ** 2)), 1)


def most_size(squares: int, count: int) -> float:
    """The most that the levels may be in l1: whole numbers are at most their squares."""
    return min(float(squares), math.sqrt(count * squares))


def round_within(
    rows: Float[Tensor, "n count"],
    step: float,
    squares: int,
    uniform: Callable[[int], Float64[Tensor, "n count"]],
) -> Int64[Tensor, "n count"]:
    """Whole levels of each row, at random, whose squares sum up to no more than that.

    uniform: numbers from 0 to below 1 for an attempt. Where all attempts are too long, levels are
    rounded towards zero, and shortened until they are not.
    """
    exact = (rows.double() / step).nan_to_num(0.0, 0.0, 0.0)
    levels = shortened(exact, squares)
    is_open = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    for attempt in range(ATTEMPTS):
        tried = (exact + uniform(attempt)).floor().long()
        fits = torch.linalg.vector_norm(tried.double(), dim=1) < SQUARES_FIT
        takes = is_open & fits & (tried.square().sum(1) <= squares)
        levels = torch.where(takes[:, None], tried, levels)
        is_open &= ~takes
        if not is_open.any():
            break
    return levels


def shortened(exact: Float64[Tensor, "n count"], squares: int) -> Int64[Tensor, "n count"]:
    """Rounded towards zero, and scaled down before where that would be too long."""
    lengths = torch.linalg.vector_norm(exact, dim=1)
    scale = (1 - 2.0**-40) * math.sqrt(squares) / lengths.clamp(min=math.sqrt(squares))
    levels: Tensor = (exact * scale[:, None]).trunc().long()
    return levels
