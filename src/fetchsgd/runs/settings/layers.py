"""From layers of settings to a checked `Config`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fetchsgd.clients.trainer import LocalWork
from fetchsgd.errors import UserError
from fetchsgd.methods import METHODS
from fetchsgd.runs.settings.assignments import did_you_mean, parse_assignments, refuse_unknown
from fetchsgd.runs.settings.ranges import check_ranges, require
from fetchsgd.runs.settings.sections import (
    KINDS_OF_SECTIONS,
    SECTIONS,
    Config,
    DownloadSettings,
    TrainSettings,
    UploadSettings,
    defaults_of,
    method_options,
)
from fetchsgd.runs.settings.types import check_types, like, typed
from fetchsgd.runs.toml_files import Settings
from fetchsgd.server.schedule import Schedule
from fetchsgd.tasks import Task, find_task, task_options

Made = dict[Any, Task]  # tasks by what makes them


def resolve(
    given: Settings,
    assignments: Iterable[str] = (),
    made: Made | None = None,
    clients: int = 0,
) -> Config:
    """Check the settings and fill in what is not given. Loads the task's data.

    With `made`, a task that is in it is not made again, and one that is not is put there.
    `clients`: how many there are, where the task of a real client holds nobody else's data.
    """
    for section in given:
        if section not in SECTIONS:
            raise UserError(f"there is no section [{section}]{did_you_mean(section, SECTIONS)}")
    function, options = _task_of(given)
    method = str(given.get("method", {}).get("name", "fetchsgd"))
    if method not in METHODS:
        raise UserError(f"there is no method {method!r}{did_you_mean(method, METHODS)}")
    known = _known_settings(options, method)
    given = merge(given, parse_assignments(assignments, known))
    seed = typed("train.seed", given.get("train", {}).get("seed", TrainSettings.seed), int)
    require(0 <= seed < 2**63, "train.seed must be from 0 to 2^63 - 1", seed)
    task_given = {k: v for k, v in given.get("task", {}).items() if k != "name"}
    refuse_unknown({"task": task_given}, known)
    chosen = {k: like(f"task.{k}", v, options[k]) for k, v in task_given.items()}
    made, key = ({} if made is None else made), (function, seed, *sorted(chosen.items()))
    if key not in made:
        try:
            made[key] = function(seed=seed, **chosen)
        except ValueError as error:
            raise UserError(str(error)) from error
    task = made[key]
    layered = merge(known, _preset(task, method), given)
    refuse_unknown(layered, known)
    layered["task"]["name"] = str(given.get("task", {}).get("name", "digits"))
    layered["method"]["name"] = method
    return _build(layered, task, method, clients or task.train.num_clients)


def merge(*layers: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Section by section and key by key; later layers win."""
    merged: Settings = {}
    for layer in layers:
        for section, values in layer.items():
            if not isinstance(values, Mapping):
                raise UserError(f"{section!r} must be a section, [{section}], not a single value")
            merged.setdefault(section, {}).update(values)
    return merged


def _task_of(given: Settings) -> tuple[Any, dict[str, Any]]:
    function = find_task(str(given.get("task", {}).get("name", "digits")))
    return function, task_options(function)


def _known_settings(options: dict[str, Any], method: str) -> Settings:
    """Every key with its default; None where a method leaves it to the task or the user."""
    return {
        "task": {"name": "digits", **options},
        "method": {"name": method, **method_options(method)},
        **{section: defaults_of(kind) for section, kind in KINDS_OF_SECTIONS.items()},
    }


def _preset(task: Task, method: str) -> Settings:
    preset = {name: values for name, values in task.preset.items() if name != "methods"}
    for_method = dict(task.preset.get("methods", {}).get(method, {}))
    sections = {k: for_method.pop(k) for k in list(for_method) if k in SECTIONS}
    return merge(preset, {"method": for_method}, sections)


def _build(settings: Settings, task: Task, method: str, clients: int) -> Config:
    for section, kind in KINDS_OF_SECTIONS.items():
        check_types(section, settings[section], kind)
    options = {k: v for k, v in settings["method"].items() if k != "name"}
    missing = [key for key, value in options.items() if value is None]
    if missing:
        raise UserError(f"method.{missing[0]} must be given: {method} has no default for it")
    check_types("method", options, METHODS[method])
    settings["method"].update(options)
    train = TrainSettings(**settings["train"])
    if not train.baseline_epochs:
        settings["train"]["baseline_epochs"] = train.epochs
        train = TrainSettings(**settings["train"])
    config = Config(
        settings, task, method, options, train,
        Schedule(**settings["schedule"]), LocalWork(**settings["local"]),
        UploadSettings(**settings["upload"]), DownloadSettings(**settings["download"]),
    )  # fmt: skip
    check_ranges(config, clients)
    return config
