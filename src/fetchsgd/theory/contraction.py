"""What Top-k(U(S(q))) surely removes from q: the contraction in the proof of Theorem 1.

The proof has |e|^2 <= (1 - tau) |q|^2 once heavy coordinates are recovered. Estimates are not
exact, so that does not hold as it stands: what was estimated leaves its error behind, and the k - 1
other coordinates may be zeros that were overestimated. With all estimates off by less than
error * |q|, and a = sqrt(tau) for the heavy coordinate:

    it is among the k       |e|^2 <= (1 - tau + k error^2) |q|^2
    it is not               k others look larger than a - error, so are larger than a - 2 error, and
                            |e|^2 <= (1 - k (a - error) (a - 3 error)) |q|^2

so that e contracts by the smaller of both. A table for `contracting(tau, k).error` thus removes
tau / 2 of the energy, and has O(k log(dim rounds / delta) / tau) cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fetchsgd.sketch.checks import check_whole_number
from fetchsgd.theory.checks import check_error, check_tau
from fetchsgd.wire.header import MOST as MOST_DIM

# Of tau: what is left of the contraction by tau that the paper counts on.
CONTRACTION_SHARE = 1 / 2


@dataclass(frozen=True)
class Contraction:
    """With estimates this far off at most, top-k leaves |e|^2 <= (1 - removed) |q|^2."""

    tau: float
    k: int
    error: float

    def __post_init__(self) -> None:
        check_tau(self.tau)
        check_whole_number("k", self.k, 1, MOST_DIM)
        check_error(self.error)

    @property
    def removed(self) -> float:
        """The share of |q|^2 that surely goes; not above 0 where nothing is sure."""
        amplitude = math.sqrt(self.tau)
        among = self.tau - self.k * self.error**2
        others = self.k * (amplitude - self.error) * (amplitude - 3 * self.error)
        return min(among, others) if 3 * self.error < amplitude else min(among, 0.0)


def contracting(tau: float, k: int) -> Contraction:
    """The largest error with which top-k surely removes half of tau."""
    check_tau(tau)
    check_whole_number("k", k, 1, MOST_DIM)
    among = math.sqrt((1 - CONTRACTION_SHARE) / k)
    others = (2 - math.sqrt(1 + 3 * CONTRACTION_SHARE / k)) / 3  # k (1 - s) (1 - 3 s) = share
    return Contraction(tau, k, math.sqrt(tau) * min(among, others))
