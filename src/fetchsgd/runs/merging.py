"""How a run merges replies, and who lies in it, from its settings; or why that cannot be had."""

from __future__ import annotations

import torch

from fetchsgd.errors import UserError
from fetchsgd.robust import Liars, Merger
from fetchsgd.robust.attacks import Examples
from fetchsgd.runs.settings import Config
from fetchsgd.runs.settings.parts import ATTACK, MERGE
from fetchsgd.runs.setup import Setup
from fetchsgd.sums import Modular

LEAST = 3  # clients in a sum: of two, each knows what the other sends


def make_merger(setup: Setup, sums_groups: bool = False) -> Merger | None:
    """None where the mean of all replies is taken.

    sums_groups: whether each group can have a sum of its own, where replies are hidden in sums.
    """
    config = setup.config
    chosen = config.parts[MERGE.setting]
    rule = chosen.made()
    if getattr(rule, "is_plain", False):
        return None
    smallest = 1
    if isinstance(config.quantiser, Modular):
        if not sums_groups:
            raise UserError(
                f"merge.name = {chosen.name!r} compares groups of clients, and with upload.sum = "
                "'modular' the server of a federation sees one sum of all: rounds would have to "
                "run the protocol once for each group, replace who drops out within its group, and "
                "try again those groups alone that failed. Simulations can; here take merge.name "
                "= 'mean', or leave out upload.sum"
            )
        smallest = _in_a_sum(config.quantiser, setup.sampler.per_round, rule.groups)
    if config.privacy.is_on:
        raise UserError(
            f"merge.name = {chosen.name!r} goes by what other clients send, so noise for a mean is "
            "not enough to hide one of them; with privacy take merge.name = 'mean'"
        )
    if config.train.diagnose:
        raise UserError(
            "train.diagnose follows the mean of all clients' gradients; leave it out, or take "
            "merge.name = 'mean'"
        )
    shape = setup.method.message.shape
    return Merger(rule, shape, config.train.seed, torch.device(setup.device), smallest)


def _in_a_sum(quantiser: Modular, clients: int, groups: int) -> int:
    """How many clients the smallest group of a round has; UserError if they are too few."""
    smallest = clients // groups
    if smallest < LEAST:
        raise UserError(
            f"merge.groups = {groups} of train.clients_per_round = {clients} are sums of "
            f"{smallest or 'one or no'} {'client' if smallest <= 1 else 'clients'}, which hide "
            f"nobody; with upload.sum = 'modular' a group needs at least {LEAST}: take "
            f"merge.groups of at most {clients // LEAST}, or leave out upload.sum"
        )
    if quantiser.secure:
        quantiser.safety(smallest)
    return smallest


def make_liars(config: Config, clients: int) -> Liars | None:
    """None where all are honest."""
    attack = config.parts[ATTACK.setting].made()
    if not attack.is_on:
        return None
    if isinstance(config.quantiser, Modular) and isinstance(attack, Examples):
        raise UserError(
            "attack.name = 'examples' claims a weight that is told beside a message, and with "
            "upload.sum = 'modular' weights are part of the sum; take another attack.name, or "
            "leave out upload.sum"
        )
    return Liars(attack, clients)


def refuse_attack(config: Config) -> None:
    """In a federation of real clients."""
    if config.parts[ATTACK.setting].name != "none":
        raise UserError(
            "attack.name makes liars of simulated clients, and those of a federation are real; "
            "leave it out"
        )
