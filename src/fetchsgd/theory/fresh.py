"""Fresh hashes: the noise of what is decoded, and the rate of SGD with it (docs/theory.md).

    E |x - g|^2 = omega |g|^2,   omega = d / c - 1 with one row of balanced cells

What is sent is the top k of eta x + e, which leaves at most 1 - delta of its squared length, where
delta = k / d, whatever the vector. So no coordinate needs to be heavy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fetchsgd.sketch.checks import check_whole_number
from fetchsgd.theory.checks import check_constant


def collision_noise(dim: int, cols: int, rows: int = 1) -> float:
    """The most that omega is, for `rows` of `cols` cells each whose estimates are averaged."""
    check_whole_number("dim", dim, 1)
    check_whole_number("cols", cols, 1)
    check_whole_number("rows", rows, 1)
    return max(dim / cols - 1, 0.0) / rows


@dataclass(frozen=True)
class FreshRate:
    """Over T rounds the mean of E |grad f|^2 is at most 4 gap / (step T) + floor.

    step is of momentum SGD's whole: eta / (1 - rho).
    """

    step: float
    start: float  # 4 gap / (step T)
    floor: float  # what sampling and rounding leave

    @property
    def bound(self) -> float:
        return self.start + self.floor


def largest_step(smoothness: float, noise: float, delta: float, momentum: float = 0.0) -> float:
    """The largest step that the theorem allows, over 1 - rho."""
    drift = _drift(delta, momentum)
    by_noise = 1 / (4 * smoothness * (1 + noise))
    by_error = 1 / (2 * smoothness * math.sqrt(drift * (1 + noise)))
    return min(by_noise, by_error)


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
    check_constant("smoothness", smoothness)
    check_constant("gap", gap, zero=True)
    check_constant("variance", variance, zero=True)
    check_constant("noise", noise, zero=True)
    check_whole_number("rounds", rounds, 1)
    if not 0 < delta <= 1:
        raise ValueError(f"delta, what is sent over what there is, is in (0, 1], got {delta}")
    most = largest_step(smoothness, noise, delta, momentum)
    step = most if step is None else step
    if not 0 < step <= most:
        raise ValueError(f"step must be above 0 and at most {most:.3g}, got {step}")
    each = 2 * smoothness * step + 2 * smoothness**2 * step**2 * _drift(delta, momentum)
    return FreshRate(step, 4 * gap / (step * rounds), each * (1 + noise) * variance)


def _drift(delta: float, momentum: float) -> float:
    """|x - y|^2 summed up is at most this times step^2 |decoded|^2 summed up."""
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be at least 0 and below 1, got {momentum}")
    if momentum == 0:
        return 4 / delta**2
    return 8 / delta**2 + 2 * (momentum / (1 - momentum)) ** 2
