"""Liars among simulated clients: what they send instead of their own vector.

They know each other, and the honest vectors of the round: the worst case. They lie about vectors,
so whatever a method then does with them, such as a sketch, is done as honest clients do it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float32
from numpy.typing import NDArray
from torch import Tensor

from fetchsgd.errors import UserError
from fetchsgd.randomness import number, numpy_generator

Vectors = Float32[Tensor, "n dim"]
WHO, NOISE = range(2)  # what is drawn
TINY = 1e-30


@dataclass(frozen=True)
class Scene:
    """What liars know of a round: all vectors, whose are lies, and a generator of their own."""

    vectors: Vectors
    is_liar: Bool[Tensor, " n"]
    generator: torch.Generator

    @property
    def lies(self) -> Vectors:
        """What the liars would send if they were honest."""
        return self.vectors[self.is_liar]

    @property
    def honest(self) -> Vectors:
        return self.vectors[~self.is_liar]

    @property
    def usual(self) -> Float32[Tensor, ""]:
        """A norm that nobody wonders at."""
        norms: Tensor = torch.linalg.vector_norm(self.vectors, dim=1)
        return norms.median()


@dataclass(frozen=True)
class NoAttack:
    """All clients are honest."""

    is_on: ClassVar[bool] = False


@dataclass(frozen=True)
class Attack:
    """What all attacks have. share: of the clients of the task, drawn from the seed.

    after: so many rounds, in which liars are still honest.
    """

    share: float = 0.1
    seed: int = 0
    after: int = 0

    is_on: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UserError(f"attack.share must be above 0 and below 1, got {self.share}")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"attack.seed must be from 0 to 2^63 - 1, got {self.seed}")
        if self.after < 0:
            raise UserError(f"attack.after must be a number of rounds, got {self.after}")

    def instead(self, scene: Scene) -> Vectors:
        """What the liars send, a row for each."""
        return scene.lies

    def claim(self, examples: float) -> float:
        """How many examples a liar says it has, where it has so many."""
        return examples


@dataclass(frozen=True)
class Scale(Attack):
    """A million times their own vector."""

    factor: float = 1e6

    def instead(self, scene: Scene) -> Vectors:
        return self.factor * scene.lies


@dataclass(frozen=True)
class Flip(Attack):
    """Their own vector, backwards: they unlearn what they hold."""

    def instead(self, scene: Scene) -> Vectors:
        return -scene.lies


@dataclass(frozen=True)
class Noise(Attack):
    """Noise as long as the others' vectors."""

    def instead(self, scene: Scene) -> Vectors:
        shape, device = scene.lies.shape, scene.vectors.device
        noise = torch.randn(shape, generator=scene.generator, device=device)
        return _as_long(noise, scene.usual)


@dataclass(frozen=True)
class Collude(Attack):
    """All send the same: against the mean of all, as long as the others' vectors.

    apart: with noise of so many times that length, of each its own, so that nobody sees they agree.
    """

    apart: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.apart < math.inf:
            raise UserError(f"attack.apart must be at least 0, got {self.apart}")

    def instead(self, scene: Scene) -> Vectors:
        against = _as_long(-scene.vectors.mean(0, keepdim=True), scene.usual)
        if not self.apart:
            return against.expand_as(scene.lies)
        shape, device = scene.lies.shape, scene.vectors.device
        noise = torch.randn(shape, generator=scene.generator, device=device)
        return _as_long(against + self.apart * _as_long(noise, scene.usual), scene.usual)


@dataclass(frozen=True)
class Little(Attack):
    """All send the mean less some deviations, cell by cell: each of them looks like the others.

    Baruch et al. 2019, "A little is enough". deviations: 0 takes as many as hide them behind some
    honest clients.
    """

    deviations: float = 0.0

    def instead(self, scene: Scene) -> Vectors:
        n, liars = len(scene.vectors), int(scene.is_liar.sum())
        behind = max(n // 2 + 1 - liars, 1)
        part = (n - liars - behind) / max(n - liars, 1)
        inverse = math.sqrt(2) * float(torch.erfinv(torch.tensor(2 * part - 1.0)))
        deviations = self.deviations or max(inverse, 0.3)
        spread = scene.vectors.std(0, correction=0)
        lie = scene.vectors.mean(0) - deviations * spread
        return lie.expand_as(scene.lies)


@dataclass(frozen=True)
class Replay(Attack):
    """What the first of them had to send in the first round, again and again."""


@dataclass(frozen=True)
class Examples(Attack):
    """Their own vector backwards, and they claim a billion examples (train.averaging)."""

    claimed: float = 1e9

    def instead(self, scene: Scene) -> Vectors:
        return -scene.lies

    def claim(self, examples: float) -> float:
        return self.claimed * examples


ATTACKS: dict[str, type] = {
    "none": NoAttack,
    "scale": Scale,
    "flip": Flip,
    "noise": Noise,
    "collude": Collude,
    "little": Little,
    "replay": Replay,
    "examples": Examples,
}


class Liars:
    """Who lies in a run, and what the lies remember."""

    def __init__(self, attack: Attack, clients: int) -> None:
        self.attack = attack
        count = round(attack.share * clients)
        if not 0 < count < clients:
            raise UserError(
                f"attack.share = {attack.share:g} of {clients} clients is {count}; some must lie "
                "and some be honest"
            )
        drawn = numpy_generator(attack.seed, "attack", WHO).permutation(clients)[:count]
        self.who: NDArray[np.int64] = np.sort(drawn)
        self.first: Float32[Tensor, " dim"] | None = None  # that Replay sends again

    def lie(self, vectors: Vectors, clients: NDArray[np.int64], round: int) -> Vectors:
        """The vectors with those of liars replaced."""
        is_liar = torch.from_numpy(np.isin(clients, self.who)).to(vectors.device)
        if not bool(is_liar.any()) or round < self.attack.after:
            return vectors
        drawn = number(self.attack.seed, "attack", NOISE, round, int(clients[0]))
        generator = torch.Generator(vectors.device).manual_seed(drawn)
        scene = Scene(vectors, is_liar, generator)
        if isinstance(self.attack, Replay):
            self.first = scene.lies[0].clone() if self.first is None else self.first
            instead = self.first.expand_as(scene.lies)
        else:
            instead = self.attack.instead(scene)
        told = vectors.clone()
        told[is_liar] = instead
        return told

    def claims(
        self, examples: NDArray[np.int64], clients: NDArray[np.int64], round: int
    ) -> Float32[Tensor, " n"]:
        """The share of each client in a mean, by the examples that it says it has."""
        lies = np.isin(clients, self.who) & (round >= self.attack.after)
        factors = np.where(lies, self.attack.claim(1.0), 1.0)
        told = torch.from_numpy(examples * factors)
        return (told / told.sum()).float()

    def line(self) -> dict[str, Any]:
        return {}

    def result(self) -> dict[str, Any]:
        return {"liars": len(self.who)}

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.first is None else {"first": self.first}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.first = tensors.get("first")


def _as_long(rows: Vectors, norm: Float32[Tensor, ""]) -> Vectors:
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows * (norm / lengths.clamp(min=TINY))
