"""Noise by the clients: what it is sized for, from public settings alone, before the first round.

The noise of a sum must be enough whoever drops out and whoever works with the server: secure
aggregation opens no sum of fewer than `least` clients, and of these as many as collude may have
added none. So each adds its part of the noise of `least - colluding` clients; that there are mostly
more makes a sum a little noisier than is accounted.
"""

from __future__ import annotations

from typing import cast

from fetchsgd.errors import UserError
from fetchsgd.privacy import Accountant, DistributedNoise, Participation
from fetchsgd.privacy.accounting import How, least_noise
from fetchsgd.runs.settings import Config
from fetchsgd.server.sampling import Sampler
from fetchsgd.sums import Modular
from fetchsgd.sums.layout import Layout
from fetchsgd.sums.private_levels import PrivateLevels, private_step


def who_takes_part(sampler: Sampler) -> Participation:
    """As the server sees it, which knows who does."""
    how = cast(How, sampler.how)
    return Participation(how, sampler.num_clients, sampler.per_round, sampled=False)


def accountant(levels: PrivateLevels, sampler: Sampler) -> Accountant:
    return Accountant(levels.noise.curve, who_takes_part(sampler), "rdp")


def private_levels(
    config: Config, sampler: Sampler, rounds: int, numbers: int
) -> PrivateLevels | None:
    """None unless clients add noise. numbers: of a message."""
    if config.privacy.mode != "distributed":
        return None
    check_distributed(config)
    privacy, sums = config.privacy, config.quantiser
    assert isinstance(sums, Modular)
    assert privacy.mechanism != "gaussian"
    kind, safety = privacy.mechanism, sums.safety(sampler.per_round)
    honest, cells = safety.least - safety.colluding, Layout.of(numbers).cells
    if honest < 1:
        raise UserError(
            f"of {sampler.per_round} clients in a round none is sure to be honest and to stay; "
            "take more of them (train.clients_per_round), or lower upload.colluding and "
            "upload.dropping"
        )

    def at(noise: float) -> PrivateLevels:
        step = sums.sum_step or private_step(
            privacy.clip, noise, cells, sums.sum_bits, sums.wrap_probability, sampler.per_round,
            honest,
        )  # fmt: skip
        found = DistributedNoise(kind, noise, privacy.clip, step, cells, honest)
        return PrivateLevels(found, safety.least)

    def is_enough(noise: float) -> bool:
        try:
            return accountant(at(noise), sampler).epsilon(rounds, privacy.delta) <= privacy.epsilon
        except UserError:  # too much for the bits, which the last try says
            return True

    return at(privacy.noise or least_noise(is_enough))


def check_distributed(config: Config) -> None:
    """UserError for what does not go with noise by the clients."""
    if not isinstance(config.quantiser, Modular):
        raise UserError(
            "privacy.mode = 'distributed' needs sums of whole levels, in which clients add their "
            "noise: add upload.sum = 'modular'"
        )
    if config.privacy.quantile:
        raise UserError(
            "privacy.quantile moves the clip, and with it the step and the noise that clients have "
            "agreed on; in privacy.mode = 'distributed' give a clip and leave it out"
        )
