"""Which privacy the settings ask for: noise by the server, or by the clients.

In mode "distributed" the server is trusted with nothing but sums, which have the noise of all who
are in them. So the promise is against the server, too: it sees who takes part, from which follows
that sampling gains nothing; and the clients' losses, which no noise covers, stay with them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import torch

from fetchsgd.errors import UserError
from fetchsgd.methods import Upload
from fetchsgd.privacy import Accountant, Participation, Privacy
from fetchsgd.privacy.accounting import How
from fetchsgd.runs.private import Private
from fetchsgd.runs.settings import Config
from fetchsgd.server.rounds import Merged
from fetchsgd.server.sampling import Sampler
from fetchsgd.sums import Modular, ModularRound
from fetchsgd.sums.noise_sources import NoiseSource, SecretNoise, SeededNoise
from fetchsgd.sums.private_levels import PrivateLevels


def private(
    config: Config, sampler: Sampler, rounds: int, levels: PrivateLevels | None = None
) -> Private | None:
    """None if the settings ask for no privacy. levels: of noise by the clients."""
    if not config.privacy.is_on:
        return None
    check_private(config)
    who = Participation(
        cast(How, sampler.how), sampler.num_clients, sampler.per_round, sampled=levels is None
    )
    given = (config.privacy, who, rounds, config.train.seed)
    try:
        if levels is None:
            return Private(*given)
        sums = config.quantiser
        return Distributed(*given, levels, isinstance(sums, Modular) and sums.secure)
    except ValueError as error:
        raise UserError(f"the settings of privacy do not go together: {error}") from error


def check_private(config: Config) -> None:
    """UserError for what cannot be accounted for."""
    train, mode = config.train, config.privacy.mode
    if train.averaging != "uniform":
        raise UserError(
            f"train.averaging = {train.averaging!r} gives some clients more weight than the clip "
            "allows for; with privacy take 'uniform'"
        )
    if mode == "central" and isinstance(config.quantiser, Modular):
        raise UserError(
            "upload.sum = 'modular' learns its step from sums that have no noise yet; with it take "
            "privacy.mode = 'distributed', or leave it out"
        )
    if mode == "central" and not config.quantiser.exact:
        raise UserError(
            "rounding may make a message longer than the clip, and the size of a step learned "
            "from messages tells of them; with privacy take upload.quantiser = 'bits', "
            "upload.bits = 32"
        )
    if train.diagnose:
        raise UserError(
            "train.diagnose writes down what clients' gradients are like, which no noise covers; "
            "leave it out, or privacy"
        )


class Distributed(Private):
    """Noise by the clients, in whole levels."""

    def __init__(
        self,
        privacy: Privacy,
        who: Participation,
        rounds: int,
        seed: int,
        levels: PrivateLevels,
        secure: bool,
    ) -> None:
        self.levels, self.secure = levels, secure
        super().__init__(privacy, who, rounds, seed)

    def _account(self, rounds: int) -> tuple[float, Accountant]:  # noqa: ARG002
        noise = self.levels.noise
        return noise.noise, Accountant(noise.curve, self.participation, "rdp")

    @property
    def noise_source(self) -> NoiseSource:
        """Of all simulated clients together."""
        if self.privacy.random == "seed":
            return SeededNoise(self.seed)
        return SecretNoise(self.source)

    @property
    def notes(self) -> list[str]:
        who, noise = self.participation, self.levels.noise
        notes = super().notes
        notes.append(
            f"clients add noise for {noise.clients} honest ones; a sum of fewer than "
            f"{self.levels.least} clients is not used"
        )
        last = who.clients % who.per_round
        if who.how == "epoch" and 0 < last < self.levels.least:
            notes.append(f"the last cohort of each epoch has {last} clients: its round is dropped")
        if self.more_noise > 1.1:
            notes.append(
                f"so few bits need steps so coarse that rounding makes the noise "
                f"{self.more_noise:.2f} times as large; take more of upload.sum_bits, or fewer "
                "cells"
            )
        if not self.secure:
            notes.append(
                "privacy.mode = 'distributed' protects from the server only where it sees nothing "
                "but sums: in a federation add upload.secure = true"
            )
        return notes

    @property
    def more_noise(self) -> float:
        """How much larger noise is than it would be without rounding."""
        noise = self.levels.noise
        return float(noise.squares**0.5 * noise.step / noise.clip)

    def ready(self, upload: Upload, cohort: int) -> Upload:  # noqa: ARG002
        quantiser = upload.quantiser
        assert isinstance(quantiser, ModularRound)
        return upload._replace(quantiser=quantiser.noisy_by(self.noise_source))

    def noisy(self, merged: Merged, round: int) -> Merged:
        """The noise is in the sum; nobody is told what training cost the clients."""
        self.done = round + 1
        unknown = torch.full_like(merged.loss, math.nan)
        return replace(merged, loss=unknown, loss_is_known=False)

    def result(self) -> dict[str, Any]:
        found, noise = super().result(), self.levels.noise
        found["privacy"] |= {
            "mechanism": noise.kind,
            "honest": noise.clients,
            "least": self.levels.least,
            "step": noise.step,
            "more_noise": self.more_noise,
        }
        return found
