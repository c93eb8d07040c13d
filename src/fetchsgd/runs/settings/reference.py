"""The settings as people look them up: by section, each with default, range and meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fetchsgd.errors import UserError
from fetchsgd.named import REQUIRED, did_you_mean
from fetchsgd.runs.settings.meanings import Meaning, meaning_of
from fetchsgd.runs.settings.parts import PARTS, Part, defaults_of
from fetchsgd.runs.settings.sections import KINDS_OF_SECTIONS, SECTIONS
from fetchsgd.runs.settings.synonyms import in_our_words
from fetchsgd.runs.settings.types import NAMES
from fetchsgd.runs.toml_files import Settings, write_value
from fetchsgd.tasks import TASKS, find_task, task_options

ABOUT = {
    "task": "the data and the model, and the options of the task",
    "method": "what is sent, and the options of the method",
    "train": "how long, how many clients, which device",
    "schedule": "the learning rate",
    "local": "what a client does with its data",
    "upload": "how the numbers that a client sends are written",
    "download": "how weights are quantised, and so how changes to them are written",
    "privacy": "clipping, noise, and what they promise",
    "merge": "how replies become one update, and which lies that withstands",
    "attack": "liars among simulated clients, to try it with",
}


@dataclass(frozen=True)
class Entry:
    """A setting."""

    section: str
    key: str
    default: str
    kind: str  # "a number", "one of ..."
    meaning: Meaning

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def may_be(self) -> str:
        """The type and the range, as in "a number, above 0"."""
        return ", ".join(part for part in (self.kind, self.meaning.range) if part)

    def __str__(self) -> str:
        """Meaning and range in a sentence."""
        text, may_be = self.meaning.text, self.may_be
        told = f"{text[0].upper()}{text[1:]}." if text else ""
        return f"{told} {may_be[:1].upper()}{may_be[1:]}.".strip() if may_be else told


@dataclass(frozen=True)
class Table:
    """The settings of a section that belong together. title: which part has them."""

    title: str
    entries: tuple[Entry, ...]


def look_up(name: str) -> list[Table]:
    """A section, or a single setting by its full or short name."""
    if name in SECTIONS:
        return reference(name)
    found = []
    for table in (table for section in SECTIONS for table in reference(section)):
        entries = tuple(entry for entry in table.entries if name in (entry.name, entry.key))
        found += [Table(table.title, entries)] if entries else []
    if not found:
        hint = in_our_words(name) or _close(name)
        raise UserError(f"there is no section or setting {name!r}{hint}")
    return found


def _close(name: str) -> str:
    tables = (table for section in SECTIONS for table in reference(section))
    known = {known for table in tables for e in table.entries for known in (e.key, e.name)}
    hint = did_you_mean(name, [*SECTIONS, *known])
    return hint if "did you mean" in hint else f"; sections are {', '.join(SECTIONS)}"


def reference(section: str) -> list[Table]:
    """All settings of a section, those that are always there first."""
    tables = [Table("", tuple(_always(section)))]
    if section == "task":
        tables += [_of_task(name, function) for name, function in TASKS.items()]
    for part in PARTS:
        if part.section == section:
            tables += [_of_part(part, name) for name in part.known]
    return [table for table in tables if table.entries]


def entries_of(settings: Settings) -> dict[str, Entry]:
    """Of all settings that there are with the task and the parts that these settings name."""
    task = find_task(str(settings["task"]["name"]))
    found = [entry for section in SECTIONS for entry in _always(section)]
    found += _of_task("", task).entries
    for part in PARTS:
        found += _of_part(part, part.name_in(settings)).entries
    return {entry.name: entry for entry in found}


def _always(section: str) -> Iterator[Entry]:
    if section == "task":
        yield _entry(section, "name", "digits", _choices(TASKS, "function"))
    for part in PARTS:
        if part.section == section:
            yield _entry(section, part.key, part.default, _choices(part.known, "Class"))
    if section in KINDS_OF_SECTIONS:
        kind = KINDS_OF_SECTIONS[section]
        hints = get_type_hints(kind)
        for key, default in defaults_of(kind).items():
            yield _entry(section, key, default, kind_of(hints[key]))


def _choices(known: Any, form: str) -> str:
    return f"one of {', '.join(map(repr, known))}, or 'package.module:{form}'"


def _of_task(name: str, function: Callable[..., Any]) -> Table:
    hints = _hints(function)
    entries = tuple(
        _entry("task", key, default, kind_of(hints.get(key, Any)), function)
        for key, default in task_options(function).items()
    )
    return Table(f"task.name = {name!r}", entries)


def _of_part(part: Part, name: str) -> Table:
    kind = part.find(name)
    hints = _hints(kind)
    entries = tuple(
        _entry(part.section, key, default, kind_of(hints.get(key, Any)), kind)
        for key, default in part.options(name).items()
    )
    return Table(f"{part.setting} = {name!r}", entries)


def _hints(owner: Callable[..., Any]) -> dict[str, Any]:
    """Of a user's own part there may be none that can be read; that is no reason to fail here."""
    try:
        return get_type_hints(owner)
    except (NameError, TypeError):
        return {}


def _entry(
    section: str, key: str, default: Any, kind: str, owner: Callable[..., Any] | None = None
) -> Entry:
    shown = _shown(f"{section}.{key}", default)
    return Entry(section, key, shown, kind, meaning_of(section, key, owner))


def _shown(name: str, default: Any) -> str:
    if default is REQUIRED:
        return "must be given, unless the task's preset does"
    return "none" if default is None else write_value(name, default)


def kind_of(hint: Any) -> str:
    """A type in words."""
    origin = get_origin(hint) or hint
    if origin is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    if origin in (Union, UnionType):
        return " or ".join(kind_of(each) for each in get_args(hint) if each is not NoneType)
    return "" if origin is Any else NAMES.get(origin, getattr(origin, "__name__", str(origin)))
