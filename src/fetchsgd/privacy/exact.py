"""Discrete Gaussian and Skellam numbers one by one, in whole numbers: the reference.

Nothing here is rounded. The discrete Gaussian is Algorithms 1 to 3 of Canonne, Kamath and Steinke,
"The Discrete Gaussian for Differential Privacy" (2020). A Skellam number is the difference of two
Poisson numbers, which come from the same coins. `tables.py` draws the same distributions fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from math import isqrt

from fetchsgd.privacy.source import Source

CHUNK = 256
HALF = Fraction(1, 2)


@dataclass
class Coins:
    """Random whole numbers and coins, from words of a source."""

    source: Source
    labels: tuple[int, ...] = ()
    _words: Iterator[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._words = (
            int(word) for chunk in count() for word in self.source.words(CHUNK, *self.labels, chunk)
        )

    def below(self, bound: int) -> int:
        """Uniform from 0 to bound - 1."""
        bits = (bound - 1).bit_length()
        while True:
            number = 0
            for _ in range(-(-bits // 64)):
                number = number << 64 | next(self._words)
            number &= (1 << bits) - 1
            if number < bound:
                return number

    def flip(self, chance: Fraction) -> bool:
        """Heads with this probability."""
        return self.below(chance.denominator) < chance.numerator

    def flip_exp(self, size: Fraction) -> bool:
        """Heads with probability exp(-size)."""
        while size > 1:
            if not self._flip_exp(Fraction(1)):
                return False
            size -= 1
        return self._flip_exp(size)

    def _flip_exp(self, size: Fraction) -> bool:
        return self.run(size) % 2 == 0

    def run(self, size: Fraction) -> int:
        """How many coins of chances size, size/2, size/3, ... show heads before the first tails.

        It is k or more with probability size^k / k!; size is at most 1.
        """
        return next(k for k in count() if not self.flip(size / (k + 1)))


def discrete_laplace(scale: int, coins: Coins) -> int:
    """A number k with probability proportional to exp(-|k| / scale)."""
    while True:
        part = coins.below(scale)
        if not coins.flip_exp(Fraction(part, scale)):
            continue
        whole = 0
        while coins.flip_exp(Fraction(1)):
            whole += 1
        size, is_negative = part + scale * whole, coins.flip(HALF)
        if size or not is_negative:  # 0 has one sign
            return -size if is_negative else size


def discrete_gaussian(variance: Fraction, coins: Coins) -> int:
    """A number k with probability proportional to exp(-k^2 / (2 variance))."""
    scale = isqrt(variance.numerator // variance.denominator) + 1
    while True:
        k = discrete_laplace(scale, coins)
        if coins.flip_exp((abs(k) - variance / scale) ** 2 / (2 * variance)):
            return k


def poisson(mean: Fraction, coins: Coins) -> int:
    """A sum of Poisson numbers with means of at most a half."""
    total, parts = 0, -(-mean // HALF)
    for _ in range(parts):
        total += _small_poisson(mean / parts, coins)
    return total


def _small_poisson(mean: Fraction, coins: Coins) -> int:
    """Runs that are kept so often that k comes out in proportion to mean^k / k!."""
    while True:
        k = coins.run(mean)
        if coins.flip((1 - mean) / (1 - mean / (k + 1))):
            return k


def skellam(variance: Fraction, coins: Coins) -> int:
    return poisson(variance / 2, coins) - poisson(variance / 2, coins)
