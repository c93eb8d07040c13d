"""The settings of a run's privacy, and what they may be together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fetchsgd.errors import UserError
from fetchsgd.privacy.accounting import By

Mechanism = Literal["gaussian", "discrete_gaussian", "skellam"]


@dataclass(frozen=True)
class Privacy:
    """Differential privacy for whole clients: the section [privacy].

    mode: "off"; "central", noise by a server that is trusted with sums; or "distributed", noise by
        the clients in whole levels, for a server that sees sums alone.
    clip: the longest message that a client sends, in l2; with a quantile, that of the first round.
    quantile: the share of clients whose messages are to be within the clip, which then follows
        them; 0 leaves it where it is.
    clip_rate: by how much the logarithm of the clip moves, for the whole share.
    clip_noise: the standard deviation of the noise of the count of clients within the clip; 0 takes
        a twentieth of a cohort.
    noise: its standard deviation over the clip, in the sum; 0 takes what epsilon asks for.
    epsilon: of the whole run; where the noise is given, a budget beyond which no round goes; 0 is
        no budget.
    delta: the probability beside epsilon; well below one over the number of clients.
    mechanism: of distributed noise; central noise is Gaussian.
    accountant: "pld", by dp-accounting, or "rdp", which needs no package and promises less.
    random: where noise comes from: "secret", from a key that nobody knows; or "seed", from the
        run's seed, to repeat experiments on data that is public.
    """

    mode: Literal["off", "central", "distributed"] = "off"
    clip: float = 1.0
    quantile: float = 0.0
    clip_rate: float = 0.2
    clip_noise: float = 0.0
    noise: float = 0.0
    epsilon: float = 0.0
    delta: float = 1e-5
    mechanism: Mechanism = "gaussian"
    accountant: By = "pld"
    random: Literal["secret", "seed"] = "secret"

    @property
    def is_on(self) -> bool:
        return self.mode != "off"

    def check(self) -> None:
        """UserError for the first that is wrong."""
        for key in ("clip", "clip_rate"):
            self._require(getattr(self, key) > 0, key, "above 0")
        for key in ("clip_noise", "noise", "epsilon"):
            self._require(getattr(self, key) >= 0, key, "at least 0")
        self._require(0 <= self.quantile < 1, "quantile", "at least 0 and below 1")
        self._require(0 < self.delta < 1, "delta", "between 0 and 1")
        if self.is_on and not self.noise and not self.epsilon:
            raise UserError(
                f"privacy.mode = {self.mode!r} needs privacy.epsilon, or privacy.noise "
                "(`fetchsgd privacy` says which noise an epsilon asks for)"
            )
        central = self.mode != "distributed"
        if self.is_on and central != (self.mechanism == "gaussian"):
            others = "'discrete_gaussian' or 'skellam': clients add noise in whole levels"
            wanted = "'gaussian': the server's noise" if central else others
            raise UserError(
                f"privacy.mechanism must be {wanted} in privacy.mode = {self.mode!r}, "
                f"got {self.mechanism!r}"
            )

    def _require(self, holds: bool, key: str, what: str) -> None:
        if not holds:
            raise UserError(f"privacy.{key} must be {what}, got {getattr(self, key)!r}")
