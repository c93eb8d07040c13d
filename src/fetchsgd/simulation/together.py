"""What processes that train together must have in common, and what they learn from the first."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from fetchsgd.errors import UserError
from fetchsgd.ranks import Ranks
from fetchsgd.ranks.joining import connect
from fetchsgd.runs.checkpoint import Saved, read_checkpoint
from fetchsgd.runs.settings.parts import ATTACK, MERGE
from fetchsgd.runs.setup import Setup
from fetchsgd.runs.toml_files import Settings

MOST_LOOKED_AT = 100_000  # clients, whose examples are counted


def check_together(ranks: Ranks, setup: Setup) -> None:
    """Connect the processes of a run. UserError if they do not have the same run before them."""
    if ranks.is_alone:
        return
    config = setup.config
    if config.train.diagnose and ranks.size > 1:
        raise UserError(
            "train.diagnose looks at all clients' gradients, and each of several processes has "
            "those of its own clients alone; leave it out, or train in one process"
        )
    if (config.parts[MERGE.setting].name, config.parts[ATTACK.setting].name) != ("mean", "none"):
        raise UserError(
            "merge.name and attack.name look at all clients' messages, and each of several "
            "processes has those of its own clients alone; leave them out, or train in one process"
        )
    _check_settings([json.loads(said) for said in ranks.all_say(json.dumps(config.settings))])
    data = config.task.train
    some = data.sizes_of(np.arange(min(data.num_clients, MOST_LOOKED_AT))).sum()
    has = (
        f"{data.num_clients:,} clients, {some:,} examples of the first {MOST_LOOKED_AT:,}, "
        f"{setup.model.dim:,} weights"
    )
    ranks.must_agree("the data or the models", has)
    connect(ranks, setup.device)


def _check_settings(of_each: list[Settings]) -> None:
    for rank, settings in enumerate(of_each):
        for section, first in of_each[0].items():
            own = settings.get(section, {})
            for key in (key for key in {**first, **own} if first.get(key) != own.get(key)):
                raise UserError(
                    f"the processes of this run were started with different settings: {section}."
                    f"{key} is {first.get(key)!r} in process 0 and {own.get(key)!r} in process "
                    f"{rank}"
                )


def from_first(ranks: Ranks, folder: Path, device: torch.device) -> Saved | None:
    """The checkpoint of a folder, which the first process reads for all; None if there is none."""
    saved = read_checkpoint(folder, device) if ranks.is_first else None
    about = json.loads(ranks.first_says(json.dumps(None if saved is None else saved.about)))
    tensors = ranks.from_first(None if saved is None else saved.tensors, device)
    return None if tensors is None else Saved(about, tensors)
