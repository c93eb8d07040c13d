"""Fresh hashes: the noise of what is decoded, and the rate of SGD with it (docs/theory.md).

    E |x - g|^2 <= omega |g|^2,   omega = ceil(d / c) - 1 with one row of balanced cells

(equal if d is a multiple of c). With k > 0, what is sent is the top k of eta x + e, which leaves at
most 1 - delta of its squared length, where delta = k / d, whatever the vector. So no coordinate
needs to be heavy. With k = 0 on a grid of steps all is sent but what the grid rounds off, which is
at most half a step for each weight.

Both rates are for an unbiased decoder, and for a momentum that is not masked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fetchsgd.sketch.checks import check_whole_number
from fetchsgd.theory.checks import check_constant


def collision_noise(dim: int, cols: int, rows: int = 1, block: int = 1) -> float:
    """The most that omega is, for `rows` of `cols` cells each whose estimates are averaged.

    Of the cells of a row, a multiple of `block` are in use. A cell has at most one coordinate of
    each group of as many. If the last group is smaller, then the bound is reached by vectors that
    are zero elsewhere; with nothing in the last group omega is dim / cells - 1.
    """
    check_whole_number("dim", dim, 1)
    check_whole_number("cols", cols, 1)
    check_whole_number("rows", rows, 1)
    check_whole_number("block", block, 1, cols)
    if dim <= cols:
        return 0.0
    groups = -(-dim // (cols // block * block))
    return (groups - 1) / rows


@dataclass(frozen=True)
class FreshRate:
    """Over T rounds the mean of E |grad f|^2 is at most 4 gap / (step T) + floor.

    step is of momentum SGD's whole: eta / (1 - rho).
    """

    step: float
    start: float  # 4 gap / (step T)
    floor: float  # what sampling and rounding leave, and a grid

    @property
    def bound(self) -> float:
        return self.start + self.floor


def largest_step(smoothness: float, noise: float, delta: float, momentum: float = 0.0) -> float:
    """The largest step that the theorem allows, over 1 - rho."""
    drift = _drift(delta, momentum)
    by_noise = 1 / (4 * smoothness * (1 + noise))
    by_error = 1 / (2 * smoothness * math.sqrt(drift * (1 + noise)))
    return min(by_noise, by_error)


def largest_grid_step(smoothness: float, noise: float, momentum: float = 0.0) -> float:
    """The same with k = 0 on a grid: step + L D step^2 <= 1 / (2 L (1 + omega))."""
    share = 2 * _velocity_drift(momentum) / (1 + noise)
    return 1 / (smoothness * (1 + noise)) / (1 + math.sqrt(1 + share))


def fresh_rate(
    smoothness: float,
    gap: float,
    variance: float,
    noise: float,
    delta: float,
    rounds: int,
    *,
    step: float | None = None,
    momentum: float = 0.0,
) -> FreshRate:
    """The theorem, for a step or for the largest. variance: of the mean gradient, sigma^2."""
    _check(smoothness, gap, variance, noise, rounds)
    if not 0 < delta <= 1:
        raise ValueError(f"delta, what is sent over what there is, is in (0, 1], got {delta}")
    step = _checked_step(step, largest_step(smoothness, noise, delta, momentum))
    each = 2 * smoothness * step + 2 * smoothness**2 * step**2 * _drift(delta, momentum)
    return FreshRate(step, 4 * gap / (step * rounds), each * (1 + noise) * variance)


def grid_rate(
    smoothness: float,
    gap: float,
    variance: float,
    noise: float,
    rounding: float,
    rounds: int,
    *,
    step: float | None = None,
    momentum: float = 0.0,
) -> FreshRate:
    """The same with k = 0 on a grid. rounding: E^2, the sum of squares of half of all steps."""
    _check(smoothness, gap, variance, noise, rounds)
    check_constant("rounding", rounding, zero=True)
    step = _checked_step(step, largest_grid_step(smoothness, noise, momentum))
    each = 2 * smoothness * step + 2 * smoothness**2 * step**2 * _velocity_drift(momentum)
    grid = (2 if momentum == 0 else 4) * smoothness**2 * rounding
    return FreshRate(step, 4 * gap / (step * rounds), each * (1 + noise) * variance + grid)


def _check(smoothness: float, gap: float, variance: float, noise: float, rounds: int) -> None:
    check_constant("smoothness", smoothness)
    check_constant("gap", gap, zero=True)
    check_constant("variance", variance, zero=True)
    check_constant("noise", noise, zero=True)
    check_whole_number("rounds", rounds, 1)


def _checked_step(step: float | None, most: float) -> float:
    step = most if step is None else step
    if not 0 < step <= most:
        raise ValueError(f"step must be above 0 and at most {most:.3g}, got {step}")
    return step


def _drift(delta: float, momentum: float) -> float:
    """|x - y|^2 summed up is at most this times step^2 |decoded|^2 summed up."""
    velocity = _velocity_drift(momentum)
    return 4 / delta**2 if momentum == 0 else 8 / delta**2 + velocity


def _velocity_drift(momentum: float) -> float:
    """The momentum's part of it."""
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be at least 0 and below 1, got {momentum}")
    return 2 * (momentum / (1 - momentum)) ** 2
