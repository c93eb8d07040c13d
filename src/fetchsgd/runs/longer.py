"""A run that is to go on for longer than it was planned.

That is the same as a longer run from the start only if the rounds that are done would have had the
same learning rates in it. A constant schedule is of that kind, and so is a piecewise one that is
written in the run's own epochs. Linear and triangular ones end at 0, wherever the end is.
"""

from __future__ import annotations

import math
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.runs.older import as_meant
from fetchsgd.runs.settings import merge
from fetchsgd.runs.toml_files import Settings
from fetchsgd.server.schedule import Schedule

LOOKS = 1000  # at the rates of a run
LENGTH = ("epochs", "baseline_epochs")  # of [train]


def with_epochs(written: Settings, epochs: float) -> Settings:
    """The settings of a run folder for so many epochs.

    If the baseline was as long as the run, it stays so.
    """
    train = written["train"]
    same = train.get("baseline_epochs", 0.0) in (0.0, train["epochs"])
    return merge(written, {"train": dict.fromkeys(LENGTH if same else LENGTH[:1], epochs)})


def is_longer(written: Settings, now: Settings) -> bool:
    """Whether it is the run of a folder with more epochs; UserError if its schedule forbids that.

    `now` is resolved.
    """
    before, after = _epochs(written), _epochs(now)
    if before is None or after is None or after <= before:
        return False
    schedule = Schedule(**as_meant(written).get("schedule", {}))
    other = Schedule(**now["schedule"])
    for look in range(LOOKS):
        epoch = (look + 0.5) / LOOKS * before
        then = schedule.at(epoch / before, _baseline(written))
        if not math.isclose(then, other.at(epoch / after, _baseline(now)), rel_tol=1e-6):
            raise UserError(
                f"a {schedule.kind} schedule over {before:g} epochs cannot go on to {after:g}: the "
                "rounds that are done would have had other learning rates; start a longer run in "
                "another folder, or use schedule.kind = 'constant' for runs that may go on"
            )
    return True


def same_length(settings: Settings, other: Settings) -> Settings:
    """The settings with the length of others, to compare all the rest."""
    train: dict[str, Any] = other.get("train", {})
    return merge(settings, {"train": {key: train[key] for key in LENGTH if key in train}})


def _epochs(settings: Settings) -> float | None:
    found = settings.get("train", {}).get("epochs")
    return float(found) if isinstance(found, int | float) else None


def _baseline(settings: Settings) -> float:
    train = settings["train"]
    return float(train.get("baseline_epochs") or train["epochs"])
