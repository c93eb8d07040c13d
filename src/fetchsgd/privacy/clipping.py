"""No client sends anything longer than the clip, so none matters more than noise can hide.

What is clipped is what is sent. A sketch may be longer than its vector, as coordinates that share a
cell add up, so a clipped vector would promise nothing about its sketch.

The clip may follow the lengths of what clients send: a given share of them, the quantile, is to
be shorter (Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning with Adaptive
Clipping", 2021). The server learns the share from one bit of each client, with noise of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

# Numbers are rounded after they were scaled: aim so much below the clip that no length is above.
MARGIN = 1 - 2.0**-22
LEAST_SCALE = 2.0**-100  # smaller factors have fewer digits as float32


class Limit(NamedTuple):
    """How much a client may matter in a round.

    longest: message, in l2. share: of each client in the mean, whoever else takes part.
    """

    longest: float
    share: float


class Clipped(NamedTuple):
    """Rows, and how many of them were within the clip before."""

    rows: Float32[Tensor, "n count"]
    within: Int64[Tensor, ""]


def clip(rows: Float32[Tensor, "n count"], longest: float) -> Clipped:
    """Shorten each row to the given length. One that is infinite, or nearly so, becomes zero."""
    lengths = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    is_within = lengths <= longest
    scale = torch.where(is_within, 1.0, MARGIN * longest / lengths)
    scaled = rows * scale.float()[:, None]
    is_kept = (scale > LEAST_SCALE)[:, None]
    return Clipped(torch.where(is_kept, scaled, 0.0), is_within.sum())


@dataclass(frozen=True)
class AdaptiveClip:
    """Moves the clip to where a share of `quantile` of the clients is within it.

    rate: of the logarithm, in a round. noise: the standard deviation of that of the count.
    """

    quantile: float
    rate: float
    noise: float

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ValueError(f"the quantile must be between 0 and 1, got {self.quantile!r}")

    def noise_of_sum(self, noise: float) -> float:
        """The noise multiplier that is left for the sum, where both together are to cost `noise`.

        A client moves the count, less a half for each, by a half: two Gaussians at once, with
        sensitivities over deviations of 1 / left and 1 / (2 self.noise).
        """
        rest = noise**-2 - (2 * self.noise) ** -2
        if rest <= 0:
            raise ValueError(
                f"the noise of the count must be above {noise / 2:.4g}, half the noise multiplier, "
                f"got {self.noise:.4g}"
            )
        return 1 / math.sqrt(rest)

    def moved(self, clip: float, within: float, expected: int) -> float:
        """The next clip, from the noisy sum of (1 if within, else 0) - 1/2 of each client."""
        share = min(max(within / expected + 0.5, 0.0), 1.0)
        return clip * math.exp(-self.rate * (share - self.quantile))
