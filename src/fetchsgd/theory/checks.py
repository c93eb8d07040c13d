"""Refuse numbers that no theorem is about, with a sentence each."""

from __future__ import annotations

# Below this, squares of tau and the tables for it are of no use to anyone.
LEAST_TAU = 1e-9
LEAST_ERROR = 1e-20
# Far from where products of constants overflow.
LEAST, MOST = 1e-50, 1e50


def check_theorem(theorem: int) -> None:
    if theorem not in (1, 2):
        raise ValueError(f"theorem must be 1 or 2, got {theorem!r}")


def check_tau(tau: float) -> None:
    if not LEAST_TAU <= tau < 1:
        raise ValueError(f"tau must be at least {LEAST_TAU:g} and below 1, got {tau!r}")


def check_share(name: str, value: float) -> None:
    """Strictly between 0 and 1."""
    if not LEAST <= value < 1:
        raise ValueError(f"{name} must be above 0 and below 1, got {value!r}")


def check_error(error: float) -> None:
    if not LEAST_ERROR <= error < MOST:
        raise ValueError(f"error must be a share of the norm above 0, got {error!r}")


def check_constant(name: str, value: float, zero: bool = False) -> None:
    """A constant of the problem: positive, or perhaps 0."""
    if not (LEAST <= value <= MOST or (zero and value == 0)):
        least = "at least" if zero else "above"
        raise ValueError(f"{name} must be {least} 0 and at most {MOST:g}, got {value!r}")
