"""One step for each message, `tau` times its root mean square: few bits at the least error.

With tau = 8 some 4 % of a gradient's levels are not zero, and a number takes a quarter of a bit.
`bytes` caps a message: where it would be longer, its step is the smallest at which it fits, found
by trying some. The cap holds for every message, whatever its numbers are like.

The step of a capped message depends, through its size, on the random numbers that round it. A
single number moves the size by a few of all bytes and the step by far less than one of its 8 bits,
so the mean stays right to some 1 / bytes of a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from fetchsgd.quantisers.step_layout import CHUNK, level_type
from fetchsgd.quantisers.step_search import MOST_NOTCH, OCTAVE, Search, from_notches, notches
from fetchsgd.quantisers.step_section import FORMAT
from fetchsgd.quantisers.steps import StepRows, rms_steps, round_to_steps
from fetchsgd.wire.chunks import SPAN
from fetchsgd.wire.sizes import HEADER_BYTES

# How often a size is looked at before a capped message is rounded. Long messages are first searched
# by a sample, one in 16.
TRIES, TRIES_AFTER = 7, 3
SAMPLED, SAMPLE = 1 << 20, 16
# Of a size that was predicted; a real message may be that much longer.
MARGIN, MARGIN_BYTES = 0.005, 16
# Step, tables and a few levels, beside a byte for each segment.
LEAST_BYTES = 160
TAUS = (2.0**-10, 2.0**20)


@dataclass(frozen=True)
class Step:
    """tau: the step of a message over its rms; bytes: the most a message may take, 0 for no cap.

    A cap counts the whole message of a dense vector or a sketch, its header included.

    >>> rows = torch.randn(1, 10_000, generator=torch.Generator().manual_seed(0))
    >>> rounded = Step(tau=4.0).round_rows(rows, key=7, clients=torch.tensor([0]))
    >>> 8 * rounded.section_bytes().item() / 10_000 < 1.2  # bits for a number
    True
    """

    tau: float = 8.0
    bytes: int = 0

    exact = False

    def __post_init__(self) -> None:
        if not TAUS[0] <= self.tau <= TAUS[1]:
            raise ValueError(f"tau must be from {TAUS[0]:.3g} to {TAUS[1]:g}, got {self.tau!r}")
        if isinstance(self.bytes, bool) or not isinstance(self.bytes, int) or self.bytes < 0:
            raise ValueError(f"bytes must be a whole number, or 0 for no cap, got {self.bytes!r}")

    def round_rows(
        self, rows: Float32[Tensor, "n count"], key: int, clients: Int64[Tensor, " n"]
    ) -> StepRows:
        return self.round_to(rms_steps(rows, self.tau), rows, key, clients)

    def round_to(
        self,
        steps: Float32[Tensor, " n"],
        rows: Float32[Tensor, "n count"],
        key: int,
        clients: Int64[Tensor, " n"],
    ) -> StepRows:
        """By steps of at least tau times the rms, larger where messages would be too long."""
        if self.bytes:
            steps = self._fitting(rows, steps, key, clients)
        return self._rounded(rows, steps, key, clients)

    def fixed_bytes(self, count: int) -> int | None:  # noqa: ARG002
        return None

    def reads(self, format: int) -> bool:
        return format == FORMAT

    def most_bytes(self, count: int) -> int:
        """Levels with a mean magnitude of 1 / tau have at most the entropy of a geometric law."""
        if self.bytes:
            return max(self.bytes - HEADER_BYTES, 0)
        return int(1.1 * count * most_entropy(1 / self.tau) / 8) + count // 256 + 4096

    def _rounded(
        self,
        rows: Float32[Tensor, "n count"],
        steps: Float32[Tensor, " n"],
        key: int,
        clients: Int64[Tensor, " n"],
    ) -> StepRows:
        dtype = level_type(rows.shape[1], self.tau)
        return round_to_steps(rows, steps, key, clients, dtype)

    def _fitting(
        self,
        rows: Float32[Tensor, "n count"],
        steps: Float32[Tensor, " n"],
        key: int,
        clients: Int64[Tensor, " n"],
    ) -> Float32[Tensor, " n"]:
        """The smallest steps, from those given on, at which messages fit."""
        count = rows.shape[1]
        limit = (self.bytes - HEADER_BYTES) * (1 - MARGIN) - MARGIN_BYTES
        if self.bytes < HEADER_BYTES + least_bytes(count):
            raise ValueError(
                f"upload.bytes = {self.bytes} holds no message of {count} numbers: "
                f"take {HEADER_BYTES + least_bytes(count)} or more"
            )
        most = max(math.sqrt(count) / self.tau, 1)
        reach = int(OCTAVE * math.log2(256 * most))
        first = notches(steps)
        last = (first + reach).clamp(max=MOST_NOTCH)
        usable = (steps > 0) & (steps < torch.inf)

        def searched(search: Search, some: Float32[Tensor, "n count"], tries: int) -> Search:
            for _ in range(tries):
                tried = torch.where(usable, from_notches(search.at), steps)
                sizes = self._rounded(some, tried, key, clients).section_bytes()
                search = search.narrowed(sizes.to(steps.device), some.shape[1])
                # On a GPU to look would be to wait; there the tries that are left change nothing.
                if not steps.is_cuda and search.settled:
                    break
            return search

        search, tries = Search.start(first, last, limit), TRIES
        if count >= SAMPLED:
            some = sample(rows)
            part = Search.start(first, last, limit * some.shape[1] / count)
            search, tries = search.at_once(searched(part, some, TRIES).at), TRIES_AFTER
        found = searched(search, rows, tries)
        return torch.where(usable, from_notches(found.high), steps)


def sample(rows: Float32[Tensor, "n count"]) -> Float32[Tensor, "n some"]:
    """A part of all numbers, from everywhere: every 16th stretch of 4096."""
    n, count = rows.shape
    stretches = count // CHUNK
    whole = rows[:, : stretches * CHUNK].view(n, stretches, CHUNK)
    return whole[:, SAMPLE // 2 :: SAMPLE].flatten(1)


def least_bytes(count: int) -> int:
    """The smallest section that a cap may ask for: a few levels among `count` numbers."""
    return LEAST_BYTES + math.ceil(1.01 * count / SPAN)


def most_entropy(mean: float) -> float:
    """Bits of whole numbers with this mean magnitude at most: those of P(k) ~ q^|k|."""
    q = (math.sqrt(1 + mean * mean) - 1) / mean
    return -math.log2((1 - q) / (1 + q)) - mean * math.log2(q)
