"""The chance that a median over rows is off, from the chance that one row is.

A median of r independent rows is too large only if at least half of them are: a binomial tail. This
is the argument of Charikar, Chen and Farach-Colton (2002), with the tail itself instead of a bound.
An even number of rows, whose median is the mean of the middle two, needs r/2 of them.
"""

from __future__ import annotations

import math
from functools import lru_cache

LEAST_CHANCE = 1e-120
HALVINGS = 120  # of the logarithm of a chance: to the last bit
NEGLIGIBLE = 1e-18  # of the sum so far


def half_fail(rows: int, chance: float) -> float:
    """P(Bin(rows, chance) >= rows / 2), for a chance of at most 1/2."""
    assert 0 < chance <= 0.5
    need = (rows + 1) // 2
    log_term = (
        math.lgamma(rows + 1)
        - math.lgamma(need + 1)
        - math.lgamma(rows - need + 1)
        + need * math.log(chance)
        + (rows - need) * math.log1p(-chance)
    )
    odds = chance / (1 - chance)
    term = total = 1.0
    for failed in range(need, rows):
        term *= (rows - failed) / (failed + 1) * odds
        total += term
        if term < NEGLIGIBLE * total:
            break
    return min(math.exp(log_term) * total, 1.0)


@lru_cache(maxsize=4096)
def row_chance(rows: int, chance: float) -> float:
    """The largest chance of one row with which half of them fail with at most this chance."""
    low, high = math.log(LEAST_CHANCE), math.log(0.5)
    if half_fail(rows, 0.5) <= chance:
        return 0.5
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if half_fail(rows, math.exp(middle)) <= chance:
            low = middle
        else:
            high = middle
    return math.exp(low)
