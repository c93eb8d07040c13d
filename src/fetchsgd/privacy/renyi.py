"""Rényi differential privacy of the noise that we add: our own accountant, at whole orders.

A curve says for each order alpha how far apart the outputs on two neighbouring cohorts are, as a
Rényi divergence. Curves of several rounds add up, and `epsilon` turns the sum into what people ask
for.

    Gaussian            alpha / (2 z^2)    with z = standard deviation / sensitivity
    discrete Gaussian   the sum of n of them is within a factor of one with n times the variance:
                        Theorem 9 of Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian
                        Mechanism for Federated Learning with Secure Aggregation" (2021)
    Skellam             the sum of Skellam numbers is one: Theorem 3.5 of Agarwal, Kairouz and Liu,
                        "The Skellam Mechanism for Differentially Private Federated Learning" (2021)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)

Curve = Callable[[int], float]  # from an order to a divergence


@dataclass(frozen=True)
class Gaussian:
    """noise: the standard deviation over the sensitivity."""

    noise: float

    def __call__(self, order: int) -> float:
        return order / (2 * self.noise**2)


@dataclass(frozen=True)
class DiscreteGaussians:
    """The sum of `clients` discrete Gaussians in each of `count` cells.

    variance: of a single one. length: the longest whole vector that a client adds.
    """

    variance: float
    clients: int
    length: float
    count: int

    def __call__(self, order: int) -> float:
        like_one = order * self.length**2 / (2 * self.clients * self.variance)
        # Both probabilities of a ratio are off by at most a factor exp(off).
        off = self.count * self.distance
        return like_one + off * (2 * order - 1) / (order - 1)

    @property
    def distance(self) -> float:
        """How far a sum is from one discrete Gaussian, in a cell: the largest log of a ratio.

        One summand after another is added to a sum of k.
        """
        exponent = 2 * math.pi**2 * self.variance
        return 5 * sum(math.exp(-exponent * k / (k + 1)) for k in range(1, self.clients))


@dataclass(frozen=True)
class Skellams:
    """A sum of Skellam numbers in each cell.

    variance: of the sum. length, size: the most that a client adds, in l2 and in l1.
    """

    variance: float
    length: float
    size: float

    def __call__(self, order: int) -> float:
        v, squares = self.variance, self.length**2
        more = ((2 * order - 1) * squares + 6 * self.size) / (4 * v**2)
        return order * squares / (2 * v) + min(more, 3 * self.size / (2 * v))


@dataclass(frozen=True)
class PoissonSampled:
    """Every client takes part with this probability, by a coin of its own that nobody sees.

    For the Gaussian these are the divergences themselves (Mironov, Talwar and Zhang 2019). For any
    other curve they are bounds with a factor of 3 on terms above the second (Zhu and Wang 2019,
    Theorem 5).
    """

    curve: Curve
    chance: float

    def __call__(self, order: int) -> float:
        q = self.chance
        if q in (0, 1):
            return self.curve(order) if q else 0.0
        log_q, log_rest = math.log(q), math.log1p(-q)
        terms = [(order - 1) * log_rest + math.log((order - 1) * q + 1)]
        for j in range(2, order + 1):
            factor = 1 if j == 2 or isinstance(self.curve, Gaussian) else 3
            chosen = math.lgamma(order + 1) - math.lgamma(j + 1) - math.lgamma(order - j + 1)
            ways = chosen + j * log_q + (order - j) * log_rest
            terms.append(math.log(factor) + ways + (j - 1) * self.curve(j))
        return _log_sum(terms) / (order - 1)


def epsilon(curve: Curve, rounds: int, delta: float, orders: Iterable[int] = ORDERS) -> float:
    """The least that some order gives, by Proposition 12 of Canonne, Kamath and Steinke (2020)."""
    if rounds == 0:
        return 0.0
    return max(
        0.0,
        min(rounds * curve(a) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in orders),
    )


def _log_sum(terms: list[float]) -> float:
    top = max(terms)
    return top + math.log(math.fsum(math.exp(term - top) for term in terms))
