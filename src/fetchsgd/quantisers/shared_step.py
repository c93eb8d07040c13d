"""One step for all clients of a round, so that the clients that have much to say say more.

Rounded to the same step, a client with a small gradient sends next to nothing, and one with a large
gradient as many levels as that takes: over all clients together this is the least squared error for
the bytes, as it is over the numbers of one message (steps.py). The server says how large numbers
have been, their mean magnitude; the step is that over `density`, the mean magnitude of a level.
Where levels are rare, `density` is simply the share of numbers that are sent.

The server learns the size from the messages themselves: rounding at random keeps the mean of |x| as
it keeps the mean of x, since a number never changes its sign. So nothing is sent for it, and nobody
has to be believed. Before the first round a client goes by its own numbers, as if they were normal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from fetchsgd.quantisers.step import Step
from fetchsgd.quantisers.step_section import FORMAT
from fetchsgd.quantisers.steps import StepRows, rms_steps, rounded_steps

DENSITIES = (2.0**-16, 100.0)  # beyond, steps would be finer than those of a message (step.py)
# A client whose numbers are larger than the others' has a larger step too, from this factor on: its
# message stays within bounds.
FINER = 8
# |x| over the root mean square of normal numbers, up to 2 %.
NORMAL_SIZE = 0.8


@dataclass(frozen=True)
class SharedStep:
    """density: the mean magnitude of a level, over all numbers of all clients.

    bytes: the most that a message may take, 0 for no cap; where it would be longer, the client
        takes a larger step.

    >>> rows = torch.randn(1, 10_000, generator=torch.Generator().manual_seed(0))
    >>> quantiser = SharedStep(density=0.01).for_size(rows.abs().mean())
    >>> levels = quantiser.round_rows(rows, key=7, clients=torch.tensor([0])).dequantise()
    >>> 80 < levels.count_nonzero() < 120  # of 10,000
    tensor(True)
    """

    density: float = 0.01
    bytes: int = 0

    exact = False

    def __post_init__(self) -> None:
        if not DENSITIES[0] <= self.density <= DENSITIES[1]:
            raise ValueError(
                f"density must be from {DENSITIES[0]:.2g} to {DENSITIES[1]:g}, got {self.density!r}"
            )

    @property
    def tau(self) -> float:
        """The step over the rms, for normal numbers."""
        return NORMAL_SIZE / self.density

    @property
    def finest(self) -> Step:
        """The quantiser of the smallest steps that a client may take."""
        return Step(self.tau / FINER, self.bytes)

    def for_size(self, size: float | Tensor) -> SizedStep:
        """The quantiser of a round, where numbers have this mean magnitude; 0 if nobody knows."""
        return SizedStep(self, size)

    def round_rows(
        self, rows: Float32[Tensor, "n count"], key: int, clients: Int64[Tensor, " n"]
    ) -> StepRows:
        return self.for_size(0.0).round_rows(rows, key, clients)

    def fixed_bytes(self, count: int) -> int | None:  # noqa: ARG002
        return None

    def reads(self, format: int) -> bool:
        return format == FORMAT

    def most_bytes(self, count: int) -> int:
        return self.finest.most_bytes(count)


@dataclass(frozen=True, eq=False)
class SizedStep:
    """A SharedStep in a round, when the size of numbers is known."""

    shared: SharedStep
    size: float | Tensor

    exact = False

    def round_rows(
        self, rows: Float32[Tensor, "n count"], key: int, clients: Int64[Tensor, " n"]
    ) -> StepRows:
        steps = self.steps(rms_steps(rows, self.shared.tau))
        return self.shared.finest.round_to(steps, rows, key, clients)

    def steps(self, own: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        """From what each client would take by itself; what is not finite stays so."""
        if isinstance(self.size, Tensor):
            size = self.size.to(own.device, torch.float64)
        else:  # filled in on the device, which nobody has to wait for
            size = torch.full((), self.size, dtype=torch.float64, device=own.device)
        is_known = (size > 0) & (size < math.inf)
        exact = (torch.where(is_known, size, 1.0) / self.shared.density)[None]
        common = rounded_steps(exact, torch.zeros(1, dtype=torch.int32, device=own.device))
        return torch.where(is_known, torch.maximum(common, own / FINER), own)

    def fixed_bytes(self, count: int) -> int | None:
        return self.shared.fixed_bytes(count)

    def reads(self, format: int) -> bool:
        return self.shared.reads(format)

    def most_bytes(self, count: int) -> int:
        return self.shared.most_bytes(count)


MOST_OF_MEDIAN = 4.0
FORGETS = 0.1  # of what was known of the size, in a round


def typical_size(sizes: Float64[Tensor, " n"]) -> Float64[Tensor, ""]:
    """The mean size of the numbers of some clients, of whom a few may be anything.

    No client counts for more than four times the median, or for less than nothing.
    """
    finite = torch.where(sizes.isfinite(), sizes, math.inf)
    most = MOST_OF_MEDIAN * finite.quantile(0.5, interpolation="lower")
    return finite.clamp(max=most).mean()


def next_size(size: Float64[Tensor, ""] | None, seen: Float64[Tensor, ""]) -> Float64[Tensor, ""]:
    """What is known of the size of numbers after a round; 0 is nothing."""
    size = torch.zeros_like(seen) if size is None else size
    moved = torch.where(size > 0, torch.lerp(size, seen, FORGETS), seen)
    return torch.where(seen.isfinite(), moved, size)
