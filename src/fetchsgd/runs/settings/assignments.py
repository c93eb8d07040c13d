"""`key=value` from a command line, and the sentences for keys that do not exist.

From Python a key comes with its value, as a pair.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.named import did_you_mean
from fetchsgd.runs.settings.parts import PARTS, Part
from fetchsgd.runs.settings.synonyms import in_our_words
from fetchsgd.runs.toml_files import Settings

# So `epochs` is train.epochs.
SHORT_KEYS = ("method", "train", "schedule", "task", "local", "upload", "download", "privacy")


Assignment = str | tuple[str, Any]


def parse_assignments(assignments: Iterable[Assignment], known: Settings) -> Settings:
    """`section.key=value`, or `key=value` for the first of SHORT_KEYS that has that key."""
    parsed: Settings = {}
    for text in assignments:
        name, value = split(text)
        section, key = _locate(name, known)
        parsed.setdefault(section, {})[key] = value
    return parsed


def parse_names(assignments: Iterable[Assignment]) -> Settings:
    """Those that name the task or a part, on which it depends what the others may be."""
    places = {"task.name": ("task", "name")}
    for part in PARTS:
        places[part.setting] = part.section, part.key
        if part.key != "name":
            places[part.key] = part.section, part.key
    parsed: Settings = {}
    for text in assignments:
        name, value = split(text)
        if name in places:
            section, key = places[name]
            parsed.setdefault(section, {})[key] = value
    return parsed


def split(assignment: Assignment) -> tuple[str, Any]:
    """The name, as it was written, and the value."""
    if not isinstance(assignment, str):
        return assignment
    name, separator, value = assignment.partition("=")
    if not separator:
        raise UserError(f"--set {assignment!r} is not of the form key=value")
    return name.strip(), _parse_value(value.strip())


def _locate(name: str, known: Settings) -> tuple[str, str]:
    if "." in name:
        section, key = name.split(".", 1)
        if section not in known:
            raise UserError(f"there is no section {section!r}{did_you_mean(section, known)}")
        return section, key
    for section in SHORT_KEYS:
        if name in known[section] and name != "name":
            return section, name
    keys = [key for values in known.values() for key in values]
    elsewhere = [hint for section in known if (hint := _elsewhere(section, name, known))]
    hint = elsewhere[0] if elsewhere else in_our_words(name) or _alike(name, keys, PARTS)
    raise UserError(f"there is no setting {name!r}{hint}")


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string


def refuse_unknown(given: Settings, known: Settings) -> None:
    """The sentence for a setting that does not exist."""
    for section, values in given.items():
        for key in values:
            if key not in known[section]:
                hint = _elsewhere(section, key, known) or _in_another(section, key, known)
                parts = [part for part in PARTS if part.section == section]
                hint = hint or in_our_words(key) or _alike(key, known[section], parts)
                raise UserError(f"there is no setting {section}.{key}{hint}")


def _elsewhere(section: str, key: str, known: Settings) -> str:
    """The end of that sentence where another class of the same part has the option."""
    for part in PARTS:
        if part.section == section:
            hint = part.not_an_option(key, part.name_in(known))
            if hint:
                return f": {hint}"
    return ""


def _alike(key: str, known: Iterable[str], parts: Iterable[Part]) -> str:
    """The end of that sentence where the key is written almost as one that there is."""
    known = list(known)
    if not get_close_matches(key, known, 1):
        for part in parts:
            options = {option for name in part.known for option in part.options(name)}
            for close in get_close_matches(key, options, 1):
                owners = " or ".join(map(repr, part.owners(close)))
                return f"; did you mean {close!r}, which {part.setting} = {owners} has?"
    return did_you_mean(key, known)


def _in_another(section: str, key: str, known: Settings) -> str:
    """The end of that sentence where the key stands in another section."""
    sections = [other for other in SHORT_KEYS if other != section and other in known]
    others = [f"{other}.{key}" for other in sections if key in known[other]]
    return f"; did you mean {' or '.join(map(repr, others))}?" if others and key != "name" else ""
