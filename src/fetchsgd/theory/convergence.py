"""Steps and bounds of Theorems 1 and 2: min over t of E |grad f(w^t)|^2.

Each theorem as printed, and as its proof comes out when no factor is dropped on the way:

Theorem 1. The proof bounds |e^t + eta rho / (1 - rho) u^(t-1)|^2 by its first part alone; the part
with momentum is missing from the printed bound. (The corollary for rho = 0 has a factor 1/2 where 1
follows.) We bound |e| and |u| themselves, with the contraction that a table does give
(contraction.py), kappa = tau / 2:

    (4 L gap + G^2 / 2) / sqrt(T) + G^2 / T (sqrt(1 - kappa) / kappa + rho / (2 (1 - rho)))^2

Theorem 2. From the inequality that smoothness gives (eqn. plugin2 of appendix B) to the bound,
2 gap / (eta T) loses its 2 and L^2 turns into L, so that two terms lack a factor L. The mass beside
a coordinate with |x_i| > tau |x| is 1 - tau^2, not 1 - tau. And for I > 1 a table holds sums of I
gradients, of squared norm up to (I G)^2, and I tables with up to 1/tau^2 heavy coordinates each are
read, so the error of estimates is up to (1 - tau^2) I^3 / (tau^2 cols) G^2 a round. With them:

    (2 G sqrt(L) gap + 2 L (estimates + beta)) / T^(1/3) + G sqrt(L) / T^(2/3) + 2 L I^2 / T^(4/3)

The proof also takes these errors for independent between rounds, though all rounds share one hash;
we take that as given.

The paper has no variance (sigma): G bounds the norm of every stochastic gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fetchsgd.sketch.checks import check_whole_number
from fetchsgd.theory.checks import check_constant, check_tau
from fetchsgd.theory.contraction import CONTRACTION_SHARE
from fetchsgd.theory.tables import MOST_ROUNDS


@dataclass(frozen=True)
class Problem:
    """The constants of both theorems."""

    smoothness: float  # L
    gradient_norm: float  # G: no stochastic gradient is longer
    gap: float  # f(w^0) - f*

    def __post_init__(self) -> None:
        check_constant("smoothness", self.smoothness)
        check_constant("gradient_norm", self.gradient_norm)
        check_constant("gap", self.gap, zero=True)


@dataclass(frozen=True)
class Convergence:
    """A step, and bounds on the least squared gradient norm within this many rounds."""

    step: float  # eta
    printed: float  # the theorem's right side
    derived: float  # what follows with all factors kept
    leading_from: int  # rounds from which the printed bound's first term is its largest
    printed_from: int | None  # rounds from which the printed one follows from its proof's premises


def theorem_1(problem: Problem, tau: float, rounds: int, momentum: float) -> Convergence:
    """Scenario 1: eta = (1 - rho) / (2 L sqrt(T)).

    `derived` is for a table that removes tau / 2 of the energy (`contracting`).
    """
    check_tau(tau)
    _check_rounds(rounds)
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be at least 0 and below 1, got {momentum!r}")
    root, squared = math.sqrt(rounds), problem.gradient_norm**2
    step = (1 - momentum) / (2 * problem.smoothness * root)
    leading = 4 * problem.smoothness * problem.gap + squared
    paid = 2 * (1 + tau) ** 2 * squared / ((1 - tau) * tau**2)  # for compression
    kappa = CONTRACTION_SHARE * tau
    drift = math.sqrt(1 - kappa) / kappa + momentum / (2 * (1 - momentum))
    derived = (leading - squared / 2) / root + squared * drift**2 / rounds
    return Convergence(
        step,
        leading / root + paid / rounds,
        derived,
        max(math.ceil((paid / leading) ** 2), 1),
        _printed_from(tau, momentum),
    )


def _printed_from(tau: float, momentum: float) -> int:
    """With |e| and |u| added as lengths, and the half of G^2 / sqrt(T) that the proof gives away.

    The premises are those of the proof: norms within 1 +- tau, and a contraction by tau.
    """
    printed = 2 / ((1 - tau) * tau**2)
    needed = (math.sqrt(1 - tau) / tau + momentum / (2 * (1 - momentum))) ** 2 / (1 - tau) ** 2
    missing = (1 + tau) ** 2 * (needed - printed)
    return math.ceil((2 * missing) ** 2) if missing > 0 else 1


def theorem_2(
    problem: Problem,
    tau: float,
    rounds: int,
    window: int = 1,
    noise: float = 1.0,
    cols: int | None = None,
) -> Convergence:
    """Scenario 2: eta = 1 / (G sqrt(L) T^(2/3)), without momentum.

    `noise` is beta of Definition 1, at most 1, and `cols` the width of the table; the proof's least
    is 1 / tau^2. The printed bound does not follow from its proof, for any number of rounds, unless
    gap, L and I are small.
    """
    check_tau(tau)
    _check_rounds(rounds)
    check_whole_number("window", window, 1, rounds)
    if not 0 <= noise <= 1:
        raise ValueError(f"noise must be from 0 to 1, got {noise!r}")
    if cols is not None:
        check_whole_number("cols", cols, 1)
    third, smoothness = rounds ** (1 / 3), problem.smoothness
    scale = problem.gradient_norm * math.sqrt(smoothness)  # G sqrt(L)
    width = 1 / tau**2 if cols is None else cols
    estimates = (1 - tau**2) * window**3 / (tau**2 * width)
    leading = scale * problem.gap + 2 * (1 - tau + noise)
    rest = scale / third**2 + 2 * window**2 / third**4
    derived = (
        (2 * scale * problem.gap + 2 * smoothness * (estimates + noise)) / third
        + scale / third**2
        + 2 * smoothness * window**2 / third**4
    )
    least = max((scale / leading) ** 3, 2 * window**2 / leading)
    return Convergence(
        1 / (scale * third**2), leading / third + rest, derived, max(math.ceil(least), 1), None
    )


def _check_rounds(rounds: int) -> None:
    check_whole_number("rounds", rounds, 1, MOST_ROUNDS)
