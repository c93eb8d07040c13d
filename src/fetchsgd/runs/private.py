"""A run with differential privacy: a limit on what clients send, noise on their sum, an account.

The promise is about whole clients, and covers the weights after every round with all that follows
from them: whatever a method does with the noisy mean. It does not cover the training loss in the
metrics, nor bytes; these are for the server, which in mode "central" is trusted anyway. Where it is
not, clients add the noise (private_modes.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fetchsgd.errors import UserError
from fetchsgd.methods import Upload
from fetchsgd.privacy import (
    Accountant,
    AdaptiveClip,
    Gaussian,
    Limit,
    Participation,
    Privacy,
    Source,
    gaussian,
    noise_for,
)
from fetchsgd.randomness import torch_generator
from fetchsgd.server.rounds import Merged

KEY_FILE = "noise.key"
OF_MEAN, OF_COUNT = range(2)  # streams of a round
COHORTS_PART = 20  # the noise of the count, as Andrew et al. have it


class Private:
    """Limits, adds noise and keeps the account, round by round."""

    def __init__(self, privacy: Privacy, who: Participation, rounds: int, seed: int) -> None:
        self.privacy, self.participation, self.seed = privacy, who, seed
        delta = privacy.delta
        self.noise, self.accountant = self._account(rounds)
        # Known before the first round, as it must not depend on what is learned.
        self.rounds = rounds
        if privacy.epsilon:
            self.rounds = self.accountant.rounds_within(privacy.epsilon, delta, rounds)
        if self.rounds == 0:
            raise ValueError(
                f"privacy.noise = {self.noise:g} is not enough for one round: it costs an epsilon "
                f"of {self.accountant.epsilon(1, delta):.3g}, and the budget is {privacy.epsilon:g}"
            )
        self.adaptive = self._adaptive()
        self.noise_of_sum = self.noise
        if self.adaptive is not None:
            self.noise_of_sum = self.adaptive.noise_of_sum(self.noise)
        self.source = Source.secret()
        self.longest, self.done = privacy.clip, 0

    def _account(self, rounds: int) -> tuple[float, Accountant]:
        privacy, who = self.privacy, self.participation
        by = privacy.accountant
        noise = privacy.noise or noise_for(privacy.epsilon, privacy.delta, who, rounds, by)
        return noise, Accountant(Gaussian(noise), who, by)

    def _adaptive(self) -> AdaptiveClip | None:
        privacy = self.privacy
        if not privacy.quantile:
            return None
        # Whatever a cohort's size, the count must leave room for the noise of the sum.
        usual = max(self.participation.per_round / COHORTS_PART, self.noise)
        return AdaptiveClip(privacy.quantile, privacy.clip_rate, privacy.clip_noise or usual)

    @property
    def notes(self) -> list[str]:
        """Sentences that the user should read before a run."""
        who, privacy = self.participation, self.privacy
        notes = [
            f"privacy: noise {self.noise:.4g} times the clip, epsilon "
            f"{self.accountant.epsilon(self.rounds, privacy.delta):.3g} at delta "
            f"{privacy.delta:g} after {self.rounds:,} rounds"
        ]
        if privacy.random == "seed":
            notes.append(
                "privacy.random = 'seed': whoever knows the seed can take the noise out again, so "
                "this is for experiments on public data"
            )
        elif who.how != "epoch":
            notes.append("what sampling gains holds while train.seed stays secret")
        if privacy.delta * who.clients >= 1:
            notes.append(
                f"privacy.delta = {privacy.delta:g} should be well below one over the number of "
                f"clients, {who.clients:,}"
            )
        return notes

    def limit(self, cohort: int) -> Limit:
        """For the clients of a cohort of this size.

        Cohorts of a poisson sampler are divided by their mean size: that a client is missing must
        not show in the weight of others.
        """
        who = self.participation
        return Limit(self.longest, 1 / (who.per_round if who.how == "poisson" else cohort))

    def ready(self, upload: Upload, cohort: int) -> Upload:
        """How the clients of a cohort of this size send."""
        return upload._replace(limit=self.limit(cohort))

    def noisy(self, merged: Merged, round: int) -> Merged:
        """What anybody but the server may see of a round; the clip moves if it is to."""
        limit = self.limit(len(merged.clients))
        deviation = self.noise_of_sum * limit.longest * limit.share
        mean = merged.mean + self._normal(merged.mean, deviation, round, OF_MEAN)
        if self.adaptive is not None:
            assert merged.within is not None
            half = len(merged.clients) / 2
            count = torch.zeros((), dtype=torch.float32)
            drawn = self._normal(count, self.adaptive.noise, round, OF_COUNT)
            within = float(merged.within) - half + float(drawn)
            expected = round_share(limit.share)
            self.longest = self.adaptive.moved(self.longest, within, expected)
        self.done = round + 1
        return Merged(
            mean, merged.clients, merged.numbers_up, merged.bytes_up, merged.loss,
            merged.typical_loss,
        )  # fmt: skip

    def _normal(self, like: Tensor, deviation: float, round: int, what: int) -> Tensor:
        if self.privacy.random == "seed":
            generator = torch_generator(self.seed, "noise", 2 * round + what, like.device)
            return deviation * torch.randn(like.shape, generator=generator, device=like.device)
        return gaussian(like.shape, deviation, self.source, round, what).to(like.device)

    @property
    def epsilon(self) -> float:
        """Spent so far."""
        return self.accountant.epsilon(self.done, self.privacy.delta)

    @property
    def end(self) -> str:
        """Why a run ends before its last round."""
        after = self.accountant.epsilon(self.rounds + 1, self.privacy.delta)
        return (
            f"stopped after {self.rounds:,} rounds: one more would have spent an epsilon of "
            f"{after:.4g}, and the budget is {self.privacy.epsilon:g} at delta "
            f"{self.privacy.delta:g}"
        )

    # What is kept of it in a run folder (runs.recorder.Beside).

    def line(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon, "delta": self.privacy.delta, "clip": self.longest}

    def result(self) -> dict[str, Any]:
        who = self.participation
        return {
            "epsilon": self.epsilon,
            "delta": self.privacy.delta,
            "privacy": {
                "noise": self.noise,
                "noise_of_sum": self.noise_of_sum,
                "clip": self.longest,
                "sampling": who.how,
                "clients": who.clients,
                "clients_per_round": who.per_round,
                "rounds": self.done,
                "neighbours": "one client sends nothing but zeros",
            },
        }

    def tensors(self) -> dict[str, Tensor]:
        numbers = [float(self.done), self.longest, self.noise]
        return {"account": torch.tensor(numbers, dtype=torch.float64)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        done, longest, noise = tensors["account"].tolist()
        if noise != self.noise:
            raise UserError(
                f"the run has had a noise of {noise:.6g} so far, and these settings ask for "
                f"{self.noise:.6g}; go on with privacy.noise = {noise!r}"
            )
        self.done, self.longest = int(done), longest

    def keep_key(self, folder: Path | None) -> None:
        """So that a run that goes on draws the same noise for a round as before."""
        if self.privacy.random == "seed" or folder is None:
            return
        path = folder / KEY_FILE
        if path.exists():
            self.source = Source(path.read_bytes())
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self.source.key)
            file.flush()
            os.fsync(file.fileno())

    def forget_key(self, folder: Path | None) -> None:
        """All rounds are over."""
        if folder is not None:
            (folder / KEY_FILE).unlink(missing_ok=True)


def round_share(share: float) -> int:
    """How many clients a share is of."""
    return max(round(1 / share), 1)
