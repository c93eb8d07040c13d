"""How a run merges replies, and who lies in it, from its settings; or why that cannot be had."""

from __future__ import annotations

import torch

from fetchsgd.errors import UserError
from fetchsgd.robust import Liars, Merger
from fetchsgd.runs.settings import Config
from fetchsgd.runs.settings.parts import ATTACK, MERGE
from fetchsgd.runs.setup import Setup
from fetchsgd.sums import Modular


def make_merger(setup: Setup) -> Merger | None:
    """None where the mean of all replies is taken."""
    config = setup.config
    chosen = config.parts[MERGE.setting]
    rule = chosen.made()
    if getattr(rule, "is_plain", False):
        return None
    if isinstance(config.quantiser, Modular):
        raise UserError(
            f"merge.name = {chosen.name!r} compares groups of clients, and with upload.sum = "
            "'modular' the server sees one sum of all; secure aggregation would have to sum each "
            "group by itself, which it does not. Take merge.name = 'mean', or leave out upload.sum"
        )
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
    return Merger(rule, shape, config.train.seed, torch.device(setup.device))


def make_liars(config: Config, clients: int) -> Liars | None:
    """None where all are honest."""
    attack = config.parts[ATTACK.setting].made()
    if not attack.is_on:
        return None
    if isinstance(config.quantiser, Modular):
        raise UserError(
            "attack.name is for uploads that are summed plainly: behind masks no rule sees what a "
            "single client sends; leave it out, or upload.sum"
        )
    return Liars(attack, clients)


def refuse_attack(config: Config) -> None:
    """In a federation of real clients."""
    if config.parts[ATTACK.setting].name != "none":
        raise UserError(
            "attack.name makes liars of simulated clients, and those of a federation are real; "
            "leave it out"
        )
