"""Noise: Gaussian, by a server that sees the sum; or in whole levels, by every client.

A client that adds its own noise to its levels before they are masked needs to trust nobody with
them: the server sees a sum that has the noise of all who are in it. `add_noise` is what such a
client does; it knows nothing of rotations, steps or moduli.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float32, Int64
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.privacy.accounting import Accountant, Participation, least_noise
from fetchsgd.privacy.renyi import Curve, DiscreteGaussians, Skellams
from fetchsgd.privacy.rounding import most_size, most_squares
from fetchsgd.privacy.source import Source
from fetchsgd.privacy.tables import Kind, Sampler

HALVES = 4  # normal numbers in the sum that makes up one
FINEST = 2**20  # steps into which a squared level is divided


@dataclass(frozen=True)
class LevelNoise:
    """What one client adds to each level. variance: in squared levels."""

    kind: Kind
    variance: Fraction

    def add_noise(
        self, levels: Int64[Tensor, " count"], source: Source, *labels: int
    ) -> Int64[Tensor, " count"]:
        """labels: of the stream, such as the round; no two messages may share all of them."""
        drawn = Sampler(self.kind, self.variance).draw(levels.numel(), source, *labels)
        return levels + torch.from_numpy(drawn).to(levels.device).view(levels.shape)


@dataclass(frozen=True)
class DistributedNoise:
    """Clients' noise such that a sum is as noisy as it must be.

    noise: the standard deviation of the sum's over the longest that a client can add. clients: at
        least so many honest ones are in every sum; what the others add does not count.
    clip, step: of vectors, and of a level. count: how many levels a message has.
    """

    kind: Kind
    noise: float
    clip: float
    step: float
    count: int
    clients: int

    @cached_property
    def squares(self) -> int:
        """The most that the squares of one client's levels sum up to (rounding.py)."""
        return most_squares(self.clip, self.step, self.count)

    @cached_property
    def of_a_client(self) -> LevelNoise:
        """Rounded up, so that never less is added than is accounted."""
        variance = self.noise**2 * self.squares / self.clients
        return LevelNoise(self.kind, Fraction(math.ceil(variance * FINEST), FINEST))

    @property
    def curve(self) -> Curve:
        """What one round costs, by the noise that is really drawn."""
        variance, length = float(self.of_a_client.variance), math.sqrt(self.squares)
        if self.kind == "skellam":
            size = most_size(self.squares, self.count)
            return Skellams(self.clients * variance, length, size)
        return DiscreteGaussians(variance, self.clients, length, self.count)


def distributed_noise_for(
    epsilon: float, delta: float, participation: Participation, rounds: int, shape: DistributedNoise
) -> DistributedNoise:
    """The same with the least noise with which all rounds stay within epsilon."""

    def at(noise: float) -> DistributedNoise:
        return replace(shape, noise=noise)

    def is_enough(noise: float) -> bool:
        accountant = Accountant(at(noise).curve, participation, "rdp")
        return accountant.epsilon(rounds, delta) <= epsilon

    return at(least_noise(is_enough))


def gaussian(
    shape: torch.Size, deviation: float, source: Source, *labels: int
) -> Float32[Tensor, ...]:
    """Normal numbers under the key of a source.

    Each is the sum of four, halved: the last bits of a single one, made of two uniform numbers,
    could give it away (Holohan and Braghin, "Secure Random Sampling in Differential Privacy").
    """
    count = math.prod(shape)
    drawn = sum(_normal(count, source, *labels, part) for part in range(HALVES))
    scaled = drawn * (deviation / math.sqrt(HALVES))
    return torch.from_numpy(np.asarray(scaled, dtype=np.float32)).view(shape)


def _normal(count: int, source: Source, *labels: int) -> NDArray[np.float64]:
    """By Box and Muller, two at a time."""
    pairs = -(-count // 2)
    words = source.words(2 * pairs, *labels)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius = np.sqrt(-2 * np.log(uniform[:pairs]))
    angle = (2 * np.pi) * uniform[pairs:]
    both: NDArray[np.float64] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return both[:count]
