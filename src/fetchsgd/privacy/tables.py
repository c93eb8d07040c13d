"""Discrete Gaussian and Skellam numbers by the million, and exact all the same.

A number is drawn by inversion: random bits, read as a binary fraction, fall between two steps of
the distribution function. Its first 64 bits are in a table; a word that equals none of the steps'
decides at once. One that does, which happens once in some 2^50 draws, is given 64 bits more, and
the steps as many, until it is decided. So no probability is rounded, at whatever size.

Steps are whole numbers over 2^bits. They come from recurrences in which rounding stays in the last
places, and `GUARD` of these are cut off:

    discrete Gaussian    w(k+1) = w(k) q(k),  q(k+1) = q(k) r    with w(k) = exp(-k^2 / (2 v))
    Skellam              w(k-1) = w(k+1) + (2 k / v) w(k)        with w(k) = I_k(v), downwards
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, count
from math import isqrt
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fetchsgd.privacy import table_loops
from fetchsgd.privacy.source import Source

Kind = Literal["discrete_gaussian", "skellam"]

GUARD = 64  # last bits of a step that may be wrong
WORD = 64
MOST_VARIANCE = 2**26  # of a table in memory: a standard deviation of 8,192 levels


@dataclass(frozen=True)
class Sampler:
    """Draws numbers of one distribution. variance: for the discrete Gaussian, sigma^2 of its name,
    which its variance never exceeds.
    """

    kind: Kind
    variance: Fraction

    def __post_init__(self) -> None:
        if not 0 < self.variance <= MOST_VARIANCE:
            raise ValueError(
                f"the variance of noise must be above 0 and at most {MOST_VARIANCE} squared "
                f"levels, got {float(self.variance):g}: take a coarser step"
            )

    def draw(self, size: int, source: Source, *labels: int) -> NDArray[np.int64]:
        """As many independent numbers, from the stream of these labels."""
        steps, guide, first = steps_of(self.kind, self.variance)
        words = source.words(size, *labels, 0)
        places = np.empty(size, dtype=np.int64)
        table_loops.places(words, steps, guide, places)
        # Equal to a step so far, or beyond them all.
        open = (places > 0) & (steps[np.maximum(places - 1, 0)] == words)
        open |= words == np.iinfo(np.uint64).max
        numbers = places + first
        for place in np.flatnonzero(open):
            numbers[place] = self._decided(int(words[place]), int(place), source, labels)
        return numbers

    def _decided(self, word: int, place: int, source: Source, labels: tuple[int, ...]) -> int:
        """With as many more bits as it takes."""
        drawn = word
        for more in count(1):
            drawn = drawn << WORD | int(source.words(1, *labels, place, more)[0])
            steps, first = distribution(self.kind, self.variance, (more + 1) * WORD)
            at = bisect_right(steps, drawn)
            # The last place of a step may be off by one.
            near = {steps[max(at - 1, 0)], steps[min(at, len(steps) - 1)]}
            if at < len(steps) and all(abs(drawn - step) > 1 for step in near):
                return at + first
        raise AssertionError("unreachable")


class Steps(NamedTuple):
    """Of a distribution function. first: the number that a word below all steps stands for."""

    steps: NDArray[np.uint64]  # only those that some word can reach
    guide: NDArray[np.int64]  # where to look for a word
    first: int


@lru_cache(maxsize=8)
def steps_of(kind: Kind, variance: Fraction) -> Steps:
    whole, first = distribution(kind, variance, 2 * WORD)
    short = [step >> WORD for step in whole]
    low = bisect_right(short, 0)
    high = bisect_right(short, (1 << WORD) - 2)
    # Below the first step that is kept lie numbers of less than 2^-64: word 0 must be decided.
    kept = [0, *short[low:high]]
    steps = np.array(kept, dtype=np.uint64)
    return Steps(steps, table_loops.guide_of(steps), first + low - 1)


def distribution(kind: Kind, variance: Fraction, bits: int) -> tuple[list[int], int]:
    """P(X <= first + i) times 2^bits, rounded down, for i = 0, 1, ...; and `first`.

    It goes on until less than 2^-bits is left on each side.
    """
    weights = WEIGHTS[kind](variance, bits + GUARD)  # of 0, 1, 2, ...
    both = [*reversed(weights[1:]), *weights]
    total = sum(both)
    steps = [(part << bits) // total for part in accumulate(both)]
    return steps, 1 - len(weights)


def _gaussian_weights(variance: Fraction, bits: int) -> list[int]:
    """exp(-k^2 / (2 variance)) times 2^bits, to the last that is not zero."""
    # Relative errors add up over as many factors as there are weights.
    more = bits + 2 * isqrt(int(2 * bits * variance) + 1).bit_length() + 8
    ratio = _exp(-1 / (2 * variance), more)
    square = ratio * ratio >> more
    weights, weight = [], 1 << more
    while weight >> (more - bits):
        weights.append(weight >> (more - bits))
        weight = weight * ratio >> more
        ratio = ratio * square >> more
    return weights


def _exp(x: Fraction, bits: int) -> int:
    """exp(x) times 2^bits, rounded down within a few last places; |x| is small or moderate."""
    more = bits + 16 + 4 * int(abs(x))
    term, total = 1 << more, 0
    for k in count(1):
        total += term
        term = term * x.numerator // (x.denominator * k)
        if term in (0, -1):
            return total >> (more - bits)
    raise AssertionError("unreachable")


def _skellam_weights(variance: Fraction, bits: int) -> list[int]:
    """I_k(variance), up to a factor, until the rest is below 2^-bits of all.

    Downwards the recurrence has positive terms alone, so errors shrink. It starts where I_k is so
    small that what it starts with does not matter.
    """
    start = _far(variance, bits + 8)
    above, weight, weights = 0, 1 << (bits + 8), []
    for k in range(start, 0, -1):
        weights.append(weight)
        factor = 2 * k * weight * variance.denominator // variance.numerator
        above, weight = weight, above + factor
    weights.append(weight)
    weights.reverse()
    floor = sum(weights) >> bits
    return [weight for weight in weights if weight > floor]


def _far(variance: Fraction, bits: int) -> int:
    """Beyond which a Skellam number falls with a probability below 2^-(2 bits).

    By Bernstein's inequality for differences of Poisson numbers it is below
    exp(-t^2 / (2 (variance + t / 3))).
    """
    needed = 2 * bits
    t = 1
    while Fraction(t * t, 1) < 2 * (variance + Fraction(t, 3)) * needed:
        t += max(t // 16, 1)
    return t + 2


WEIGHTS: dict[Kind, Callable[[Fraction, int], list[int]]] = {
    "discrete_gaussian": _gaussian_weights,
    "skellam": _skellam_weights,
}
