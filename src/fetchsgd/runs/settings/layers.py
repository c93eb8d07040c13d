"""From layers of settings to a checked `Config`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from inspect import signature
from typing import Any

from fetchsgd.errors import UserError, from_os
from fetchsgd.named import REQUIRED, did_you_mean
from fetchsgd.runs.older import FETCHSGD, PAPERS_FORM
from fetchsgd.runs.settings.assignments import (
    SHORT_KEYS,
    Assignment,
    parse_assignments,
    parse_names,
    refuse_unknown,
    split,
)
from fetchsgd.runs.settings.parts import (
    METHOD,
    PARTS,
    Chosen,
    Part,
    defaults_of,
    forms_in,
)
from fetchsgd.runs.settings.ranges import check_ranges, require
from fetchsgd.runs.settings.sections import KINDS_OF_SECTIONS, SECTIONS, Config, TrainSettings
from fetchsgd.runs.settings.types import check_types, like, typed
from fetchsgd.runs.toml_files import Settings
from fetchsgd.tasks import Task, find_task, task_options

DEFAULT_TASK = "digits"
Made = dict[Any, Task]  # tasks by what makes them


def resolve(
    given: Settings,
    assignments: Iterable[Assignment] = (),
    made: Made | None = None,
    clients: int = 0,
) -> Config:
    """Check the settings and fill in what is not given. Loads the task's data.

    With `made`, a task that is in it is not made again, and one that is not is put there.
    `clients`: how many there are, where the task of a real client holds nobody else's data.
    """
    for section, values in given.items():
        if section not in SECTIONS:
            raise UserError(_no_section(section, values))
    assignments = list(assignments)
    given = with_names(given, assignments)
    known = known_settings(given)
    given = merge(given, parse_assignments(assignments, known))
    refuse_unknown(given, known)
    task, options = _task(given, known["task"], {} if made is None else made)
    layered = merge(known, _preset(task, known, forms_in(given)), given, {"task": options})
    refuse_unknown(layered, known)
    return _build(layered, task, clients or task.train.num_clients)


def with_names(given: Settings, assignments: Iterable[Assignment]) -> Settings:
    """What is given, and of the assignments those on which other defaults depend."""
    named = merge(given, parse_names(assignments))
    if METHOD.name_in(named) != FETCHSGD:  # another method may have no hash, or another one
        return named
    hashes = [value for name, value in map(split, assignments) if name in ("hash", "method.hash")]
    return merge(named, {"method": {"hash": hashes[-1]}}) if hashes else named


def _no_section(name: str, values: Any) -> str:
    if isinstance(values, Mapping):
        return f"there is no section [{name}]{did_you_mean(name, SECTIONS)}"
    known = known_settings({})
    homes = [section for section in SHORT_KEYS if name in known[section]]
    where = f"put it below [{homes[0]}]" if homes else f"sections are {', '.join(SECTIONS)}"
    return f"{name} = {values!r} stands in no section; {where}"


def merge(*layers: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Section by section and key by key; later layers win."""
    merged: Settings = {}
    for layer in layers:
        for section, values in layer.items():
            if not isinstance(values, Mapping):
                raise UserError(f"{section!r} must be a section, [{section}], not a single value")
            merged.setdefault(section, {}).update(values)
    return merged


def known_settings(given: Settings) -> Settings:
    """Every key with its default or REQUIRED, for the task and the parts that are named."""
    name = str(given.get("task", {}).get("name", DEFAULT_TASK))
    known: Settings = {
        "task": {"name": name, **task_options(find_task(name))},
        **{section: {} for section in SECTIONS if section != "task"},
    }
    for part in PARTS:
        named = part.name_in(given)
        known[part.section] |= {part.key: named, **part.options(named)}
    for section, kind in KINDS_OF_SECTIONS.items():
        known[section] |= defaults_of(kind)
    return known


def _task(given: Settings, known: dict[str, Any], made: Made) -> tuple[Task, dict[str, Any]]:
    """The task, and its options as it was made with them."""
    name, options = known["name"], {k: v for k, v in known.items() if k != "name"}
    seed = typed("train.seed", given.get("train", {}).get("seed", TrainSettings.seed), int)
    require(0 <= seed < 2**63, "train.seed must be from 0 to 2^63 - 1", seed)
    own = {k: v for k, v in given.get("task", {}).items() if k != "name"}
    chosen = {k: like(f"task.{k}", v, options[k]) for k, v in own.items()}
    _require_given("task", name, options | chosen)
    function = find_task(name)
    key = function, seed, repr(sorted(chosen.items()))
    if key not in made:
        made[key] = _make_task(name, function, {"seed": seed, **chosen})
    return made[key], {"name": name, **chosen}


def _make_task(name: str, function: Callable[..., Task], options: dict[str, Any]) -> Task:
    try:
        signature(function).bind(**options)
    except TypeError as error:
        raise UserError(
            f"task {name!r} must take the seed and its options as named arguments: {error}; its "
            "first one should be `seed: int = 0`"
        ) from error
    try:
        task = function(**options)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise from_os(f"the data of the task {name!r} cannot be read{where}", error) from error
    if not isinstance(task, Task):
        raise UserError(f"task {name!r} must return a fetchsgd.tasks.Task, got {task!r}")
    return task


def _preset(task: Task, known: Settings, forms: list[str]) -> Settings:
    preset = {name: values for name, values in task.preset.items() if name != "methods"}
    for_methods = task.preset.get("methods", {})
    for_method = dict(next((for_methods[form] for form in forms if form in for_methods), {}))
    sections = {k: for_method.pop(k) for k in list(for_method) if k in SECTIONS}
    preset = merge(preset, {"method": for_method}, sections)
    preset |= {k: _served(k, preset[k], known) for k in preset if k in SECTIONS and k != "method"}
    for part in PARTS:
        if part.key in preset.get(part.section, {}):
            raise UserError(
                f"the preset of the task {task.name!r} must not set {part.setting}: it decides "
                "which options exist, so only a file of settings or --set may"
            )
    if METHOD.name_in(known) == FETCHSGD and "hash" in preset["method"]:
        raise UserError(
            f"the preset of the task {task.name!r} must not set method.hash, on which other "
            f"defaults depend; it may have a part of its own for {PAPERS_FORM!r} among its methods"
        )
    return preset


def _served(section: str, values: Settings, known: Settings) -> Settings:
    """Without options of a quantiser or grid that this run has not named: a task may suggest both.

    >>> _served("download", {"step": 0.5}, {"download": {"grid": "float32"}})
    {}
    """
    parts = [part for part in PARTS if part.section == section]
    return {
        key: value
        for key, value in values.items()
        if key in known[section] or not any(part.owners(key) for part in parts)
    }


def _build(settings: Settings, task: Task, clients: int) -> Config:
    parts = {part.setting: _choose(part, settings) for part in PARTS}
    own = {}
    for section, kind in KINDS_OF_SECTIONS.items():
        own[section] = {field.name: settings[section][field.name] for field in fields(kind)}
        check_types(section, own[section], kind)
    own["train"]["baseline_epochs"] = own["train"]["baseline_epochs"] or own["train"]["epochs"]
    settings = merge(settings, own)
    sections: dict[str, Any] = {name: KINDS_OF_SECTIONS[name](**own[name]) for name in own}
    config = Config(settings, task, parts, **sections)
    check_ranges(config, clients)
    return config


def _choose(part: Part, settings: Settings) -> Chosen:
    """The part with its options, of the right types; `settings` gets these as well."""
    values = settings[part.section]
    name = part.name_in(settings)
    options = {key: values[key] for key in part.options(name)}
    _require_given(part.section, name, options)
    check_types(part.section, options, part.find(name))
    values.update(options)
    return Chosen(name, part.find(name), options)


def _require_given(section: str, name: str, options: dict[str, Any]) -> None:
    for key, value in options.items():
        if value is REQUIRED:
            raise UserError(
                f"{section}.{key} must be given: {name} has no default for it; add "
                f"--set {section}.{key}=..., or a line in the section [{section}] of a file"
            )
