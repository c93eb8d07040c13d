"""Settings of a run within a budget of bytes: where they start from, and what it decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fetchsgd.runs.budget import SIZES, choose, message_kind, parse_budget
from fetchsgd.runs.settings import (
    Assignment,
    Config,
    Made,
    merge,
    parse_assignments,
    resolve,
    with_names,
)
from fetchsgd.runs.settings.layers import known_settings
from fetchsgd.runs.settings.parts import METHOD
from fetchsgd.runs.settings.presets import preset
from fetchsgd.runs.toml_files import Settings
from fetchsgd.vector import FlatModel


def starts_from(own: Settings, assignments: Sequence[Assignment]) -> Settings:
    """Those of the preset `messages`, where the server sees each message and no method is named.

    Not where something speaks for a method or against rounding: sums, privacy, a diagnosis. What
    is said of the upload stands for all of it.
    """
    said = _said(own, own, assignments)
    is_seen = said.get("upload", {}).get("sum", "plain") == "plain"
    is_private = said.get("privacy", {}).get("mode", "off") != "off"
    is_diagnosed = said.get("train", {}).get("diagnose", False)
    if said.get("method") or not is_seen or is_private or is_diagnosed:
        return {}
    found = preset("messages")
    if said.get("upload"):
        found = {section: values for section, values in found.items() if section != "upload"}
    return found


def within(
    budget: str, given: Settings, own: Settings, assignments: Sequence[Assignment], made: Made
) -> tuple[Config, str]:
    """The settings with those that the budget decides, and a sentence about these.

    own: what the user has set of `given`, beside the assignments.
    """
    said = _said(given, own, assignments)
    needed = _needed(given, assignments, said)
    config = resolve(merge(needed, given), assignments, made)
    dim = FlatModel(config.task.model()).dim
    bytes = parse_budget(budget, dim)
    chosen = choose(config, said, dim, bytes)
    names = [f"{section}.{key}={v}" for section, keys in chosen.items() for key, v in keys.items()]
    does = ", ".join(names) or "messages are within it as they are set"
    note = f"budget of {bytes:,} bytes ({4 * dim / bytes:.3g}x): {does}"
    pairs = [(f"{part}.{key}", v) for part, keys in chosen.items() for key, v in keys.items()]
    return resolve(given, [*assignments, *pairs], made), note


def _said(given: Settings, own: Settings, assignments: Sequence[Assignment]) -> dict[str, Any]:
    """What the user has set, by section. given: with what a preset names."""
    known = known_settings(with_names(given, assignments))
    return merge(own, parse_assignments(assignments, known))


def _needed(
    given: Settings, assignments: Sequence[Assignment], said: Mapping[str, Any]
) -> Settings:
    """A value for the size that the budget is to choose, for tasks that have none for it."""
    kind = METHOD.find(METHOD.name_in(with_names(given, assignments)))
    size = SIZES.get(message_kind(kind) or "")
    return {"method": {size: 1}} if size and size not in said.get("method", {}) else {}
