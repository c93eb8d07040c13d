"""What the settings of older versions mean, which were written before some of ours existed.

FetchSGD was the paper's form alone: one hash for the whole run. There was no setting for it, so
settings that were written then do not say so, and today's default is another. A run folder or a
published result without `method.hash` is the paper's form.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fetchsgd.runs.files import CONFIG, read_config
from fetchsgd.runs.toml_files import Settings

FETCHSGD = "fetchsgd"
THEN = {"hash": "fixed"}  # FetchSGD's options then


def as_meant(written: Mapping[str, Any]) -> Settings:
    """Settings as a run has written them, with what went without saying."""
    method = written.get("method", {})
    if isinstance(method, Mapping) and method.get("name") == FETCHSGD:
        return {**written, "method": {**THEN, **method}}
    return dict(written)


def going_on(given: Settings, folder: Path) -> Settings:
    """Settings with which the run in a folder goes on: as given, and else as they were meant."""
    if not (folder / CONFIG).exists():
        return given
    written, own = read_config(folder).values, given.get("method", {})
    is_older = as_meant(written) != dict(written)
    if is_older and own.get("name", FETCHSGD) == FETCHSGD:
        return {**given, "method": {**THEN, **own}}
    return given
