"""What a run spends: epsilon and delta, for who really takes part in its rounds.

Two runs are neighbours if they differ in one client, whose messages are all zero in one of them.
How many clients there are, and how many are asked in a round, everybody may know.

    poisson   each client takes part by a coin of its own; whoever does not see who did gains by
              that (privacy amplification). By the privacy loss distribution of `dp-accounting`.
    epoch     each client takes part once in every epoch, so at most as often as epochs have begun.
              No gain is claimed from the order. Gaussians over and over are one Gaussian, whose
              epsilon is exact (Balle and Wang 2018).
    uniform   a cohort of fixed size, drawn anew. Leaving a client out lets another one in, so
              messages may differ by twice the clip; by the RDP accountant of `dp-accounting` for
              sampling without replacement, or as if everybody took part in every round, if that
              is less.

A server that sees who takes part gains nothing by sampling: `sampled = False`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from fetchsgd.privacy import renyi
from fetchsgd.privacy.renyi import Curve, Gaussian, PoissonSampled

How = Literal["poisson", "epoch", "uniform"]
By = Literal["pld", "rdp"]

FINENESS = 1e-3  # of privacy losses; they are rounded up
FEW_ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)  # where an order takes long
LEAST_NOISE, MOST_NOISE = 1e-3, 1e6


@dataclass(frozen=True)
class Participation:
    """Who takes part in rounds. sampled: whether it stays unknown who did."""

    how: How
    clients: int
    per_round: int
    sampled: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.per_round <= self.clients:
            raise ValueError(
                f"clients of a round must be from 1 to {self.clients}, got {self.per_round}"
            )

    @property
    def chance(self) -> float:
        return self.per_round / self.clients

    def times(self, rounds: int) -> int:
        """In how many rounds a client takes part at most."""
        per_epoch = -(-self.clients // self.per_round)
        return -(-rounds // per_epoch) if self.how == "epoch" else rounds


@dataclass(frozen=True)
class Accountant:
    """What rounds cost. curve: of one round in which the client takes part.

    by: "pld", the tightest there is for Gaussian noise, or "rdp", at whole orders, by ourselves.
    """

    curve: Curve
    participation: Participation
    by: By = "pld"

    def epsilon(self, rounds: int, delta: float) -> float:
        """After so many rounds."""
        who = self.participation
        if rounds == 0:
            return 0.0
        without = self._unsampled(who.times(rounds), delta)
        if who.how == "epoch" or not who.sampled or who.per_round == who.clients:
            return without
        if who.how == "poisson":
            return min(without, self._poisson(rounds, delta))
        return min(without, self._fixed_size(rounds, delta))

    def rounds_within(self, epsilon: float, delta: float, most: int) -> int:
        """How many rounds, up to `most`, a budget is enough for."""
        if self.epsilon(most, delta) <= epsilon:
            return most
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle, delta) <= epsilon else (low, middle)
        return low

    def _unsampled(self, times: int, delta: float) -> float:
        if isinstance(self.curve, Gaussian) and self.by == "pld":
            return gaussian_epsilon(self.curve.noise / math.sqrt(times), delta)
        return renyi.epsilon(self.curve, times, delta)

    def _poisson(self, rounds: int, delta: float) -> float:
        if isinstance(self.curve, Gaussian) and self.by == "pld":
            return float(self._losses.self_compose(rounds).get_epsilon_for_delta(delta))
        return renyi.epsilon(self._sampled_curve, rounds, delta)

    @cached_property
    def _losses(self) -> Any:
        """Of a round."""
        from dp_accounting.pld import privacy_loss_distribution

        assert isinstance(self.curve, Gaussian)
        return privacy_loss_distribution.from_gaussian_mechanism(
            self.curve.noise,
            sampling_prob=self.participation.chance,
            value_discretization_interval=FINENESS,
        )

    @cached_property
    def _sampled_curve(self) -> Curve:
        sampled = PoissonSampled(self.curve, self.participation.chance)
        return lru_cache(maxsize=None)(sampled.__call__)

    def _fixed_size(self, rounds: int, delta: float) -> float:
        if not isinstance(self.curve, Gaussian):
            return math.inf
        import dp_accounting as dp

        who = self.participation
        # Another client's message in place of this one: twice as far.
        event = dp.SampledWithoutReplacementDpEvent(
            who.clients, who.per_round, dp.GaussianDpEvent(self.curve.noise / 2)
        )
        relation = dp.NeighboringRelation.REPLACE_ONE
        accountant = dp.rdp.RdpAccountant([float(a) for a in FEW_ORDERS], relation)
        return float(accountant.compose(event, rounds).get_epsilon(delta))


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Of one Gaussian with this standard deviation over the sensitivity, rounded up."""
    low, high = 0.0, 1.0
    while gaussian_delta(noise, high) > delta:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(noise, middle) <= delta else (middle, high)
    return high


def gaussian_delta(noise: float, epsilon: float) -> float:
    """Theorem 8 of Balle and Wang (2018)."""
    half, tail = 1 / (2 * noise), epsilon * noise
    # exp(epsilon) times a tiny tail, as one exponential.
    second = epsilon + _log_tail(tail + half)
    first = _log_tail(tail - half)
    return max(0.0, math.exp(first) - math.exp(second)) if first > -700 else 0.0


def _log_tail(x: float) -> float:
    """The logarithm of the probability that a normal number is above x."""
    if x < 30:
        return math.log(math.erfc(x / math.sqrt(2)) / 2)
    return -x * x / 2 - math.log(x * math.sqrt(2 * math.pi)) + math.log1p(-1 / x**2)


@lru_cache(maxsize=64)
def noise_for(
    epsilon: float, delta: float, participation: Participation, rounds: int, by: By = "pld"
) -> float:
    """The least Gaussian noise, over the sensitivity, with which all rounds stay within epsilon."""

    def is_enough(noise: float) -> bool:
        return Accountant(Gaussian(noise), participation, by).epsilon(rounds, delta) <= epsilon

    return least_noise(is_enough)


def least_noise(is_enough: Callable[[float], bool]) -> float:
    """From where on noise is enough, rounded up to four digits so that it can be written down."""
    high = 1.0
    while not is_enough(high):
        high *= 2
        if high > MOST_NOISE:
            raise ValueError(f"no noise up to {MOST_NOISE:g} times the clip is enough")
    low = high / 2
    while low > LEAST_NOISE and is_enough(low):
        low, high = low / 2, low
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    digit = 10.0 ** (math.floor(math.log10(high)) - 3)
    return float(f"{math.ceil(high / digit) * digit:.4g}")
