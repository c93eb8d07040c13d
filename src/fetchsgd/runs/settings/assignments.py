"""`key=value` from a command line, and the sentences for keys that there are not."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.runs.toml_files import Settings

# So `epochs` is train.epochs.
SHORT_KEYS = ("method", "train", "schedule", "task", "local", "upload", "download")


def parse_assignments(assignments: Iterable[str], known: Settings) -> Settings:
    """`section.key=value`, or `key=value` for the first of SHORT_KEYS that has that key."""
    parsed: Settings = {}
    for text in assignments:
        name, separator, value = text.partition("=")
        if not separator:
            raise UserError(f"--set {text!r} is not of the form key=value")
        section, key = _locate(name.strip(), known)
        parsed.setdefault(section, {})[key] = _parse_value(value.strip())
    return parsed


def _locate(name: str, known: Settings) -> tuple[str, str]:
    if "." in name:
        section, key = name.split(".", 1)
        if section not in known:
            raise UserError(f"there is no section {section!r}{did_you_mean(section, known)}")
        return section, key
    for section in SHORT_KEYS:
        if name in known[section] and name != "name":
            return section, name
    every = [key for keys in known.values() for key in keys]
    raise UserError(f"there is no setting {name!r}{did_you_mean(name, every)}")


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string


def refuse_unknown(given: Settings, known: Settings) -> None:
    """The sentence for a setting that there is not."""
    for section, values in given.items():
        for key in values:
            if key not in known[section]:
                hint = did_you_mean(key, known[section])
                raise UserError(f"there is no setting {section}.{key}{hint}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that is not known."""
    names = list(known)
    near = get_close_matches(word, names, 1)
    return (
        f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(set(names)))}"
    )
