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
    if not (folder / CONFIG).exists() or not _is_older(read_config(folder).values):
        return given
    own = given.get("method", {})
    if own.get("name", FETCHSGD) == FETCHSGD:
        return {**given, "method": {**THEN, **own}}
    return given


def rewritten(settings: Settings, written: Mapping[str, Any]) -> Settings:
    """Settings for a folder that has those written: it stays one of an older version."""
    if not _is_older(written):
        return settings
    own = {key: value for key, value in settings["method"].items() if key not in THEN}
    return {**settings, "method": own}


def _is_older(written: Mapping[str, Any]) -> bool:
    return as_meant(written) != dict(written)
