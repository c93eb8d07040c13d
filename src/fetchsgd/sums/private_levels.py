"""Levels with differential privacy: their squares are bounded, and each client adds its noise.

Before the run all of this is fixed by public settings: the clip, the noise, how many clients a
round asks for, bits, and how likely a cell may wrap. Nothing is learned from sums, so one client
moves a sum by no more than what is accounted. The step is the finest at which a sum fits into its
bits in the worst case: all clients' vectors as long as the clip and all alike, spread evenly over
the cells by the rotation, with the noise of all of them:

    variance of a cell = (clients clip / step)^2 / cells + noise^2 squares clients / honest
                         + clients / 4

`squares` is the most that one client's levels sum up to, squared (privacy/rounding.py); `honest` is
how many clients are sure to have added their noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float32, Int16, Int64
from torch import Tensor

from fetchsgd.errors import UserError
from fetchsgd.privacy import DistributedNoise, most_squares
from fetchsgd.privacy.rounding import ATTEMPTS, shortened
from fetchsgd.quantisers.kernels import kernels_for
from fetchsgd.sums.noise_sources import NoiseSource
from fetchsgd.sums.public_step import wrap_chance

KEY_STEP = 0x9E3779B97F4A7C15
MOST_BITS = 16
# Levels in the clip that are looked at: squares of more do not fit into 16 bits.
MOST_LENGTH = 2.0**15


@dataclass(frozen=True)
class PrivateLevels:
    """What is the same for all clients and rounds.

    least: clients in a sum, below which it is not opened.
    """

    noise: DistributedNoise
    least: int

    def of_round(self, round: int) -> PrivateRound:
        return PrivateRound(self, round)


@dataclass(frozen=True)
class PrivateRound:
    """Of one round. source: of the noise; a client's own, or that of a simulation."""

    levels: PrivateLevels
    round: int
    source: NoiseSource | None = None

    def noisy_by(self, source: NoiseSource) -> PrivateRound:
        return replace(self, source=source)

    def bounded(
        self,
        cells: Float32[Tensor, "n cells"],
        step: Float32[Tensor, ""],
        most: int,
        key: int,
        clients: Int64[Tensor, " n"],
    ) -> Int16[Tensor, "n cells"]:
        """Rounded at random until no row is longer than is accounted. most: of a level."""
        rounds, squares = kernels_for(cells.device).round_places, self.levels.noise.squares
        steps = step.expand(len(cells)).contiguous()
        levels = rounds(cells, steps, torch.int16, key, clients).clamp_(-most, most)
        open = _too_long(levels, squares)
        for attempt in range(1, ATTEMPTS):
            if not len(open):
                return levels
            again = (key + attempt * KEY_STEP) % (1 << 63)
            tried = rounds(cells[open], steps[open], torch.int16, again, clients[open])
            levels[open] = tried.clamp_(-most, most)
            open = open[_too_long(levels[open], squares)]
        levels[open] = shortened(cells[open].double() / step.double(), squares).to(torch.int16)
        return levels

    def with_noise(
        self, levels: Int16[Tensor, "n cells"], clients: Int64[Tensor, " n"]
    ) -> Int16[Tensor, "n cells"]:
        """Whole numbers modulo 2^16, which is as good as any for sums modulo 2^16 and less."""
        if self.source is None:
            raise ValueError("levels with privacy need a source of noise: ModularRound.noisy_by")
        drawn = self.source.draw(
            self.levels.noise.of_a_client, levels.shape[1], self.round, clients
        )
        return (levels + drawn).to(torch.int16)


def _too_long(levels: Int16[Tensor, "n cells"], squares: int) -> Int64[Tensor, " open"]:
    """Which rows are: exactly, in whole numbers."""
    return (levels.long().square().sum(dim=1) > squares).nonzero()[:, 0]


def private_step(
    clip: float,
    noise: float,
    cells: int,
    bits: int,
    probability: float,
    clients: int,
    honest: int,
) -> float:
    """The finest that fits, a float32; UserError if none does."""
    half = float(1 << bits - 1)

    def fits(length: float) -> bool:
        """Whether a sum does, with so many levels in the clip."""
        squares = most_squares(length, 1.0, cells)
        aligned = (clients * length) ** 2 / cells
        variance = aligned + noise**2 * squares * clients / honest + clients / 4
        deviation = torch.tensor(variance, dtype=torch.float64).sqrt()
        return float(wrap_chance(half, deviation)) <= probability

    low, high = 1.0, MOST_LENGTH
    if not fits(low):
        raise UserError(
            f"upload.sum_bits = {bits} is too few for sums of {clients} clients and {cells:,} "
            f"cells with a noise of {noise:.3g} times the clip: rounding alone, which noise has to "
            "cover, is more; take more bits, or fewer cells"
        )
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    # Rounded up, as a float32 that is finer would not fit.
    return float(np.nextafter(np.float32(clip / low), np.float32(np.inf)))
