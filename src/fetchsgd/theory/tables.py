"""rows x cols for a promise, and the promise of rows x cols.

How a promise comes about. An estimate of one row is x_i plus the signed coordinates that share its
cell, with variance at most |x|^2 / cols (Charikar et al. 2002, Lemma 2; docs/hash.md for blocks).
By Chebyshev it is off by error * |x| or more with chance p <= 1 / (cols error^2). The coordinate's
own sign makes that error symmetric, so it is off *upwards* with chance at most p/2, and a median of
rows is off, to either side, with chance at most 2 P(Bin(rows, p/2) >= rows/2). A union bound goes
over all coordinates, rounds and tables that are looked at.

The paper's O() hides what follows: 1/(2 q error^2) columns and rows of some multiple of
log(dim rounds / delta), where q is what one row may fail with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fetchsgd.sketch.checks import check_whole_number
from fetchsgd.sketch.hashing import MAX_COLS
from fetchsgd.theory.checks import check_error, check_share, check_tau, check_theorem
from fetchsgd.theory.medians import half_fail, row_chance
from fetchsgd.wire.header import MOST as MOST_DIM

# Of the amplitude of a heavy coordinate: a heavy one then looks larger than half of it, and a zero
# smaller, so a threshold tells them apart ("recover all tau-heavy coordinates", appendix B).
ERROR_SHARE = 1 / 2

# Hoeffding: P(Bin(r, q) >= r/2) <= exp(-2 r (1/2 - q)^2). Cells r / (2 q error^2) are fewest at
# q = 1/6, which makes 3 / error^2 columns and 9/2 ln(2 / chance) rows.
HOEFFDING_COLS = 3.0
HOEFFDING_ROWS = 4.5

# The squared norm of a row has variance at most 2 block / cols |x|^4 (docs/hash.md).
NORM_VARIANCE = 2.0
# The proof of Theorem 1 takes norms of g^t, and of e^t + eta rho / (1 - rho) u^(t-1).
NORMS_A_ROUND = 2

MOST_ROUNDS = 10**15
MOST_ROWS = 10_000


@dataclass(frozen=True)
class Certainty:
    """All of `dim` estimates, in every round and table, with probability 1 - delta."""

    dim: int
    rounds: int
    delta: float
    sketches: int = 1  # looked at in a round: those of a sliding window

    def __post_init__(self) -> None:
        check_whole_number("dim", self.dim, 1, MOST_DIM)
        check_whole_number("rounds", self.rounds, 1, MOST_ROUNDS)
        check_share("delta", self.delta)
        check_whole_number("sketches", self.sketches, 1, MOST_ROUNDS)

    @property
    def estimates(self) -> int:
        return self.dim * self.rounds * self.sketches

    @property
    def chance(self) -> float:
        """What one estimate may fail with."""
        return self.delta / self.estimates


@dataclass(frozen=True)
class Heaviness:
    """A heavy coordinate: x_i^2 >= tau |x|^2 in Theorem 1 and |x_i| > tau |x| in Theorem 2.

    Assumption 1, and Definition 1 on which Assumption 2 rests.
    """

    theorem: int
    tau: float

    def __post_init__(self) -> None:
        check_theorem(self.theorem)
        check_tau(self.tau)

    @property
    def amplitude(self) -> float:
        """The least |x_i| / |x|."""
        return math.sqrt(self.tau) if self.theorem == 1 else self.tau

    @property
    def error(self) -> float:
        """How far estimates may be off, as a share of |x|, for heavy ones to be found."""
        return ERROR_SHARE * self.amplitude

    @classmethod
    def found_with(cls, theorem: int, error: float) -> Heaviness | None:
        """The least heavy coordinate that this error still finds; None if there is none."""
        check_theorem(theorem)
        check_error(error)
        amplitude = error / ERROR_SHARE
        tau = amplitude**2 if theorem == 1 else amplitude
        return cls(theorem, tau) if tau < 1 else None


@dataclass(frozen=True)
class TableSize:
    """A table, the error that it keeps as a share of |x|, and the chance that it does not."""

    rows: int
    cols: int
    error: float
    failure: float

    @property
    def cells(self) -> int:
        return self.rows * self.cols


def smallest_table(error: float, certainty: Certainty) -> TableSize:
    """The fewest cells for which every estimate is off by less than error * |x|."""
    check_error(error)
    side = certainty.chance / 2
    rows, cols = _fewest_cells(side, lambda q: 1 / (2 * q * error**2))
    return _settled(rows, cols, error, certainty)


def hoeffding_table(error: float, certainty: Certainty) -> TableSize:
    """The same in closed form: 3 / error^2 columns, 9/2 ln(2 dim rounds / delta) rows."""
    check_error(error)
    rows = math.ceil(HOEFFDING_ROWS * math.log(2 / certainty.chance)) | 1
    return _settled(rows, math.ceil(HOEFFDING_COLS / error**2), error, certainty)


def risk(rows: int, cols: int, error: float, certainty: Certainty) -> TableSize:
    """With which chance a given table is off by error * |x| or more somewhere."""
    _check_shape(rows, cols)
    check_error(error)
    return _risk(rows, cols, error, certainty)


def promised(rows: int, cols: int, certainty: Certainty) -> TableSize:
    """The least error that a given table keeps; 1 and more is no promise at all."""
    _check_shape(rows, cols)
    q = row_chance(rows, certainty.chance / 2)
    return TableSize(rows, cols, math.sqrt(1 / (2 * q * cols)), certainty.delta)


def norm_table(tau: float, certainty: Certainty, block: int = 1) -> TableSize:
    """The fewest cells for which `CountSketch.l2` is within 1 +- tau (proof of Theorem 1).

    A squared norm within (1 - tau)^2 and (1 + tau)^2 is off by less than tau (2 - tau). The proof
    adds such norms by the triangle inequality, which a median over rows does not obey.
    """
    check_tau(tau)
    check_whole_number("block", block, 1)
    vectors = NORMS_A_ROUND * certainty.rounds
    spread = NORM_VARIANCE * block / (tau * (2 - tau)) ** 2
    rows, cols = _fewest_cells(certainty.delta / vectors, lambda p: spread / p)
    return TableSize(rows, cols, tau, min(vectors * half_fail(rows, spread / cols), 1.0))


def _fewest_cells(chance: float, cols_for: Callable[[float], float]) -> tuple[int, int]:
    """Over odd numbers of rows; an even one is no better than the one before it."""
    least_cols = cols_for(0.5)
    best, rows = (1, math.ceil(cols_for(row_chance(1, chance)))), 3
    while rows * least_cols < best[0] * best[1] and rows <= MOST_ROWS:
        cols = math.ceil(cols_for(row_chance(rows, chance)))
        if rows * cols < best[0] * best[1]:
            best = rows, cols
        rows += 2
    return best


def _risk(rows: int, cols: int, error: float, certainty: Certainty) -> TableSize:
    one_side = 1 / (2 * cols * error**2)
    chance = 2 * half_fail(rows, one_side) if one_side < 0.5 else 1.0
    return TableSize(rows, cols, error, min(certainty.estimates * chance, 1.0))


def _settled(rows: int, cols: int, error: float, certainty: Certainty) -> TableSize:
    """Rounding may have cost the last column."""
    while (table := _risk(rows, cols, error, certainty)).failure > certainty.delta:
        cols += 1 + cols // 10**12
    return table


def _check_shape(rows: int, cols: int) -> None:
    check_whole_number("rows", rows, 1, MOST_ROWS)
    check_whole_number("cols", cols, 1, MAX_COLS)
