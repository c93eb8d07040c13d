"""From updates to weights (docs/protocol.md, "Weights")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Held:
    """A version, and what is kept of it: whole steps (int32), or weights (float32)."""

    version: int
    vector: np.ndarray


@dataclass(frozen=True)
class Grid:
    """steps: of each weight, where weights are whole steps from the initial ones; None if not."""

    origin: np.ndarray
    steps: np.ndarray | None

    def fits(self, held: Held | None, update: dict) -> bool:
        if update["since"] == 0:
            return True
        if held is None:
            return False
        if self.steps is None:  # new values may overwrite newer ones
            return update["since"] <= held.version <= update["round"]
        return update["since"] == held.version

    def receive(self, held: Held | None, update: dict) -> Held:
        if self.steps is None:
            start, values, kind = self.origin, update["floats"], np.float32
        else:
            start, values = np.zeros(len(self.origin), np.int32), update["integers"]
            kind = np.int32
        vector = (start if update["since"] == 0 or held is None else held.vector).copy()
        at, new = np.array(update["indices"], np.int64), np.array(values, kind)
        vector[at] = new if self.steps is None else vector[at] + new
        return Held(update["round"], vector)

    def weights(self, held: Held) -> np.ndarray:
        if self.steps is None:
            return held.vector
        distance = held.vector.astype(np.float32) * self.steps  # rounded before it is added
        return self.origin + distance


def grid_for(settings: dict, origin: np.ndarray, sizes: list[int]) -> Grid:
    download = settings["download"]
    if download["grid"] in ("float32", "float16", "bfloat16"):
        return Grid(origin, None)
    if download["grid"] != "steps":
        raise ValueError(f"this client does not know download.grid = {download['grid']!r}")
    steps = step_sizes(origin, sizes, download["step"], download.get("by_size", False))
    return Grid(origin, np.repeat(steps, sizes))


def step_sizes(
    origin: np.ndarray, sizes: list[int], fraction: float, by_size: bool = False
) -> np.ndarray:
    """One step for each tensor, in float64 up to the last rounding: to 8 significant bits."""
    parts = np.split(origin.astype(np.float64), np.cumsum(sizes)[:-1])
    spread = np.array([part.std() for part in parts])
    varied = spread > 0
    usual = spread.sum() / varied.sum() if varied.any() else 1.0
    exact = fraction * np.where(varied, spread, usual)
    if by_size:
        numbers = np.array(sizes, np.float64)
        exact *= np.sqrt(numbers) * (numbers.sum() / (numbers * np.sqrt(numbers)).sum())
    mantissa, exponent = np.frexp(exact)
    return np.ldexp(np.round(mantissa * 2**8), exponent - 8).astype(np.float32)
