"""Sums modulo 2^b: what a server sees that may see nothing but sums (`upload.sum = "modular"`).

Every client of a round does the same: it weighs its numbers, rotates them (rotation.py), clips
them, rounds them at random to whole levels of one public step, and sends each level modulo 2^b.
Masks that cancel in the sum can be added to such numbers, and no other form of message can be
shorter: all cells look uniform. The server adds modulo 2^b, and reads the sum as signed numbers,

    sum of levels = ((S + 2^(b-1)) mod 2^b) - 2^(b-1),

which is right as long as no cell of the true sum leaves that range. Times the step, rotated back
and divided by the sum of weights it is the mean. Integers add up in any order to the same bits, so
a simulation and a federation have the same sums.

`Modular` has the settings, `ModularRound` is the quantiser of a round, in which the step is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from fetchsgd.errors import UserError
from fetchsgd.quantisers.kernels import kernels_for
from fetchsgd.quantisers.levels import checked_rows
from fetchsgd.secure import Parameters, parameters, protocol_bytes
from fetchsgd.sums.layout import Layout
from fetchsgd.sums.level_rows import LevelRows
from fetchsgd.sums.noise_sources import NoiseSource
from fetchsgd.sums.private_levels import PrivateRound
from fetchsgd.sums.public_step import STEPS, Seen, look
from fetchsgd.sums.residues import FORMATS, section_bytes
from fetchsgd.sums.rotation import rotate, rotate_back, signs_of

BITS = (4, 16)
# Each client may take this much of the range over the root of the number of clients: so far from
# what is usual that it happens to outliers alone.
CLIP = 2.0
TOTALS = 2


class ProtocolBytes(NamedTuple):
    """Of all clients of a round together."""

    up: int
    down: int


@dataclass(frozen=True)
class Plain:
    """Messages as the quantiser writes them, each of which the server sees."""


@dataclass(frozen=True)
class Modular:
    """sum_bits: b, for a cell, from 4 to 16.

    wrap_probability: of a cell of the sum; the step is as fine as this allows.
    sum_step: the step, for all rounds; 0 to learn it from the sums. first_step: where learning it
        begins. One that is too coarse costs two or three rounds, one that is too fine as well.
    sum_clip: the most that a client may add to a cell, as a part of what a sum can hold; 0 for
        2 / sqrt(clients).
    secure: by secure aggregation; a simulation counts its keys and shares.
    colluding, dropping: the parts of a cohort that may work against the others, and may be missing
        in the end; security_bits: at which odds the first learn more (fetchsgd.secure).
    """

    sum_bits: int = 8
    wrap_probability: float = 1e-3
    sum_step: float = 0.0
    first_step: float = 1.0
    sum_clip: float = 0.0
    secure: bool = False
    colluding: float = 0.1
    dropping: float = 0.1
    security_bits: int = 40

    exact = False

    def __post_init__(self) -> None:
        if not BITS[0] <= self.sum_bits <= BITS[1]:
            raise ValueError(f"upload.sum_bits must be from 4 to 16, got {self.sum_bits!r}")
        if not 1e-12 <= self.wrap_probability <= 0.1:
            raise ValueError(
                f"upload.wrap_probability must be from 1e-12 to 0.1, got {self.wrap_probability!r}"
            )
        for name, least in (("sum_step", 0.0), ("first_step", STEPS[0])):
            value = getattr(self, name)
            if not (least <= value <= STEPS[1] and (value == 0 or value >= STEPS[0])):
                raise ValueError(f"upload.{name} must be a step such as 0.001, got {value!r}")
        for name in ("colluding", "dropping"):
            if not 0 <= getattr(self, name) < 0.5:
                raise ValueError(
                    f"upload.{name} must be a part of the clients, from 0 to below 0.5, "
                    f"got {getattr(self, name)!r}"
                )
        if not 1 <= self.security_bits <= 128:
            raise ValueError(
                f"upload.security_bits must be from 1 to 128, got {self.security_bits!r}"
            )
        if not 0 <= self.sum_clip <= 1:
            raise ValueError(f"upload.sum_clip must be from 0 to 1, got {self.sum_clip!r}")

    def for_round(
        self,
        key: int,
        step: float | Tensor | None,
        clients: int,
        private: PrivateRound | None = None,
    ) -> ModularRound:
        """The quantiser of a round. key: of the rotation; step: as learned, None or 0 if nothing.

        `clients`: as many as the round asks for. private: what privacy asks for.
        """
        if private is not None:
            return ModularRound(self, key, private.levels.noise.step, clients, None, private)
        if self.sum_step or step is None or (not isinstance(step, Tensor) and step == 0):
            step = self.sum_step or self.first_step
        return ModularRound(self, key, step, clients)

    def protocol(self, clients: int, cells: int) -> ProtocolBytes | None:
        """Of secure aggregation of so many clients, none of whom drops out, masked cells and all.

        Two totals are summed beside the cells: what clients weigh, and their losses. None for a
        cohort that is too small, as the last of an epoch may be.
        """
        try:
            found = self.safety(clients)
        except UserError:
            return None
        phases = protocol_bytes(clients, found.degree, cells, self.sum_bits, TOTALS).values()
        return ProtocolBytes(sum(part.up for part in phases), sum(part.down for part in phases))

    def safety(self, clients: int) -> Parameters:
        """Of secure aggregation: UserError for fractions that no protocol can keep."""
        return parameters(clients, self.colluding, self.dropping, self.security_bits)

    def round_rows(
        self, rows: Float32[Tensor, "n count"], key: int, clients: Int64[Tensor, " n"]
    ) -> LevelRows:
        return self.for_round(key, None, len(rows)).round_rows(rows, key, clients)

    def fixed_bytes(self, count: int) -> int:
        return section_bytes(Layout.of(count), self.sum_bits)

    def reads(self, format: int) -> bool:
        return format == FORMATS[self.sum_bits]

    def most_bytes(self, count: int) -> int:
        return self.fixed_bytes(count)


class Opened(NamedTuple):
    """A sum as the server reads it, and what it learns from it.

    `wraps` is known to a simulation alone, which adds without a modulus beside.
    """

    mean: Float32[Tensor, " count"]
    seen: Seen
    wraps: Int64[Tensor, ""]
    cells: int


@dataclass(frozen=True, eq=False)
class ModularRound:
    """The quantiser of a round.

    examples: what each client weighs, a whole number; None if all weigh 1.
    private: what clients do beside for differential privacy; the step is then that of its noise.
    """

    settings: Modular
    key: int
    step: float | Tensor
    clients: int
    examples: Int64[Tensor, " n"] | None = None
    private: PrivateRound | None = None

    exact = False

    def weighing(self, examples: Int64[Tensor, " n"]) -> ModularRound:
        return replace(self, examples=examples)

    def noisy_by(self, source: NoiseSource) -> ModularRound:
        """With noise from there, where privacy asks for any."""
        return (
            self if self.private is None else replace(self, private=self.private.noisy_by(source))
        )

    @property
    def bits(self) -> int:
        return self.settings.sum_bits

    @property
    def least(self) -> int:
        """Clients without whom a sum is not opened: their noise would be missing."""
        return 1 if self.private is None else self.private.levels.least

    @property
    def clip(self) -> int:
        """The most levels that a client adds to a cell."""
        share = self.settings.sum_clip or min(CLIP / math.sqrt(self.clients), 1.0)
        return max(int(share * ((1 << self.bits - 1) - 1)), 1)

    def step_on(self, device: torch.device) -> Float32[Tensor, ""]:
        """The step as all sides use it: a float32."""
        if isinstance(self.step, Tensor):
            return self.step.to(device, torch.float32)
        return torch.full((), self.step, dtype=torch.float32, device=device)

    def round_rows(
        self, rows: Float32[Tensor, "n count"], key: int, clients: Int64[Tensor, " n"]
    ) -> LevelRows:
        """Row i as client clients[i] sends it. Numbers that are not finite are sent as zeros."""
        rows, clients = checked_rows(rows, key, clients)
        layout, examples = Layout.of(rows.shape[1]), self.examples
        if examples is None or self.private is not None:  # nobody may weigh more than the clip
            examples = torch.ones(len(rows), dtype=torch.int64, device=rows.device)
        else:
            rows = rows * examples[:, None].float()
        signs = signs_of(layout, self.key, rows.device)
        cells = rotate(rows, signs)
        step = self.step_on(rows.device)
        most = self.clip * step
        clipped = (cells.abs() > most).sum()
        cells = cells.nan_to_num_(nan=0.0).clamp_(-most, most)
        if self.private is None:
            steps = step.expand(len(rows)).contiguous()
            levels = kernels_for(rows.device).round_places(cells, steps, torch.int16, key, clients)
            levels = levels.clamp_(-self.clip, self.clip)
        else:
            levels = self.private.bounded(cells, step, self.clip, key, clients)
            levels = self.private.with_noise(levels, clients)
        return LevelRows(layout, levels, examples, clipped, signs, self.bits, self.key, step)

    def open(
        self,
        levels: Int64[Tensor, " cells"],
        weight: int | Tensor,
        layout: Layout,
        arrived: int | None = None,
    ) -> Opened:
        """From a sum of levels, whether modulo 2^b or not, and the sum of weights.

        arrived: how many clients are in it, if not as many as were asked.
        """
        centred = self.centred(levels)
        device = levels.device
        step = self.step_on(device)
        probability = self.settings.wrap_probability
        seen = look(step.double(), centred, layout, self.bits, probability, self.clients, arrived)
        if self.settings.sum_step or self.private is not None:
            are_enough = self.private is None or arrived is None or arrived >= self.least
            usable = torch.full_like(seen.usable, are_enough)
            seen = seen._replace(next_step=step.double(), usable=usable)
        cells = centred.float() * torch.where(seen.usable, step / weight, 0.0)
        mean = rotate_back(cells[None], signs_of(layout, self.key, device), layout)[0]
        return Opened(mean, seen, (levels != centred).sum(), layout.cells)

    def centred(self, levels: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """Whole numbers modulo 2^b, from -2^(b-1) to 2^(b-1) - 1."""
        half = 1 << self.bits - 1
        return (levels + half & 2 * half - 1) - half

    def fixed_bytes(self, count: int) -> int:
        return self.settings.fixed_bytes(count)

    def reads(self, format: int) -> bool:
        return self.settings.reads(format)

    def most_bytes(self, count: int) -> int:
        return self.settings.most_bytes(count)
