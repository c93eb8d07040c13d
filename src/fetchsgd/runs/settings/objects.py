"""Settings as a Python program writes them: keywords, sections as dictionaries, parts as objects.

    simulate("digits", "fetchsgd", epochs=4, cols=4000, schedule={"peak": 0.05})
    simulate(my_task, {"name": MyMethod, "rho": 0.5}, quantiser=fs.Step(tau=8))

They become what a file and `--set` give: sections, and keys with their values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.named import name_of
from fetchsgd.runs.settings.assignments import Assignment
from fetchsgd.runs.settings.parts import METHOD, PARTS, Part
from fetchsgd.runs.settings.sections import KINDS_OF_SECTIONS, SECTIONS
from fetchsgd.runs.toml_files import Settings
from fetchsgd.tasks import Task


@dataclass(frozen=True)
class Written:
    """What a program has written, in the form of files and command lines.

    objects: by name, those that settings mean though no import leads to them.
    dim: the number of weights that a method was made for, where it came as an object.
    """

    given: Settings = field(default_factory=dict)
    assignments: list[Assignment] = field(default_factory=list)
    objects: dict[str, Any] = field(default_factory=dict)
    dim: int | None = None


def as_settings(task: Any, method: Any, settings: Mapping[str, Any]) -> Written:
    """UserError for what is neither a name, nor a table, nor an object of the right kind."""
    objects: dict[str, Any] = {}
    given: Settings = {"task": _task(task, objects)}
    if method is not None:
        given["method"] = _part(METHOD, method, objects)
    assignments: list[Assignment] = []
    by_name = {part.section if part.key == "name" else part.key: part for part in PARTS}
    for name, value in settings.items():
        if name in by_name and not isinstance(value, str | Mapping):
            part = by_name[name]
            given.setdefault(part.section, {}).update(_part(part, value, objects))
        elif name in SECTIONS:
            given.setdefault(name, {}).update(_section(name, value, objects))
        else:
            assignments.append((name, _plain(value)))
    dim = getattr(method, "dim", None) if not isinstance(method, type) else None
    return Written(given, assignments, objects, dim)


def _task(task: Any, objects: dict[str, Any]) -> dict[str, Any]:
    if isinstance(task, Mapping):
        rest = {key: _plain(value) for key, value in task.items() if key != "name"}
        return _task(task.get("name", "digits"), objects) | rest
    if isinstance(task, str):
        return {"name": task}
    if isinstance(task, Task):
        return {"name": _kept(lambda seed: task, objects, task.name)}  # noqa: ARG005
    if not callable(task):
        raise UserError(
            "task must be the name of a task, a fetchsgd.Task, or a function that returns one, "
            f"got {task!r}"
        )
    return {"name": _kept(task, objects)}


def _section(section: str, value: Any, objects: dict[str, Any]) -> dict[str, Any]:
    if isinstance(value, KINDS_OF_SECTIONS.get(section, ())):
        value = vars(value)
    elif is_dataclass(value):
        for part in PARTS:
            if part.section == section:
                return _part(part, value, objects)
    if not isinstance(value, Mapping):
        raise UserError(
            f"{section} must be a dictionary of settings, such as {section}={{...}}, got {value!r}"
        )
    own = {key: _plain(item) for key, item in value.items()}
    for part in PARTS:
        if part.section == section and not isinstance(own.get(part.key, ""), str):
            own |= _part(part, own.pop(part.key), objects)
    return own


def _part(part: Part, value: Any, objects: dict[str, Any]) -> dict[str, Any]:
    """The settings that name a part and hold its options."""
    if isinstance(value, str):
        return {part.key: value}
    if isinstance(value, Mapping):
        return _section(part.section, value, objects)
    kind = value if isinstance(value, type) else type(value)
    if not is_dataclass(kind):
        raise UserError(
            f"{part.noun} must be a name, a dictionary, or a {part.noun} such as those of "
            f"fetchsgd, got {value!r}"
        )
    known = [name for name, own in part.known.items() if own is kind]
    found: dict[str, Any] = {part.key: known[0] if known else _kept(kind, objects)}
    if isinstance(value, type):
        return found
    options = [f.name for f in fields(kind) if f.init and f.name not in part.not_options]
    return found | {name: _plain(getattr(value, name)) for name in options}


def _kept(found: Callable[..., Any], objects: dict[str, Any], title: str | None = None) -> str:
    name = name_of(found, title)
    objects[name] = found
    return name


def _plain(value: Any) -> Any:
    """As config.toml keeps it."""
    return str(value) if isinstance(value, Path) else value
