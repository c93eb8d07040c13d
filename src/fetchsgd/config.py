"""Settings: seven sections, read from TOML and the command line, checked before any work starts.

    [task]      name, and the options of the task
    [method]    name, and the options of the method
    [train]     how long, how many clients, which device
    [schedule]  the learning rate
    [local]     what a client does with its data
    [upload]    how it writes what it sends
    [download]  where weights may lie, and so how changes are written

Later layers win: our defaults, the task's preset, its preset for the method, the file, --set.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fetchsgd.client import LocalWork
from fetchsgd.errors import UserError
from fetchsgd.methods import METHODS
from fetchsgd.schedule import KINDS, Schedule
from fetchsgd.tasks import Task, find_task, task_options
from fetchsgd.toml_files import Settings

SECTIONS = ("task", "method", "train", "schedule", "local", "upload", "download")
SHORT_KEYS = (
    "method",
    "train",
    "schedule",
    "task",
    "local",
    "upload",
    "download",
)  # so `epochs` is train.epochs
DIAGNOSED = ("fetchsgd", "true_topk")  # the methods with an error on the server
NOT_OPTIONS = {"dim", "sketch"}  # of methods: what the model decides


@dataclass(frozen=True)
class TrainSettings:
    """The section [train]."""

    epochs: float = 1.0
    baseline_epochs: float = 0.0  # of the run that compression is relative to; 0 is `epochs`
    clients_per_round: int = 10
    sampling: Literal["epoch", "uniform"] = "epoch"
    averaging: Literal["uniform", "examples"] = "uniform"
    weight_decay: float = 0.0
    seed: int = 0
    device: str = "auto"
    # How passes compute. bfloat16_weights: weights are rounded as well, for the passes alone.
    # auto: bfloat16 on a GPU.
    dtype: Literal["float32", "bfloat16", "bfloat16_weights", "auto"] = "float32"
    cuda_graphs: bool = True  # on a GPU: off if the model decides by its data what to compute
    eval_every: float = 1.0  # epochs
    checkpoint_every: int = 100  # rounds; 0 only at the end
    diagnose: bool = False  # whether the theorems' assumptions hold (fetchsgd.diagnose)
    diagnose_every: int = 10  # rounds
    diagnose_window: int = 8  # the most gradients that are summed up, I of Definition 1


@dataclass(frozen=True)
class UploadSettings:
    """The section [upload]. Below 32 bits numbers are rounded at random; means stay right."""

    bits: Literal[32, 16, 8, 6, 4, 3, 2] = 32


@dataclass(frozen=True)
class DownloadSettings:
    """The section [download]; `step` and `log` serve the grid "steps"."""

    grid: Literal["float32", "float16", "bfloat16", "steps"] = "float32"
    step: float = 0.125  # of the standard deviation of a tensor's initial weights
    log: int = 256  # rounds; clients that stayed away for longer fetch all weights


@dataclass(frozen=True)
class Config:
    """Everything about a run; `settings` is the same as nested tables, fully resolved."""

    settings: Settings
    task: Task
    method: str
    method_options: dict[str, Any]
    train: TrainSettings
    schedule: Schedule
    local: LocalWork
    upload: UploadSettings
    download: DownloadSettings


KINDS_OF_SECTIONS: dict[str, type] = {
    "train": TrainSettings,
    "schedule": Schedule,
    "local": LocalWork,
    "upload": UploadSettings,
    "download": DownloadSettings,
}


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
            raise UserError(f"there is no section {section!r}{_did_you_mean(section, known)}")
        return section, key
    for section in SHORT_KEYS:
        if name in known[section] and name != "name":
            return section, name
    every = [key for keys in known.values() for key in keys]
    raise UserError(f"there is no setting {name!r}{_did_you_mean(name, every)}")


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    names = list(known)
    near = get_close_matches(word, names, 1)
    return (
        f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(set(names)))}"
    )


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
            raise UserError(f"there is no section [{section}]{_did_you_mean(section, SECTIONS)}")
    function, options = _task_of(given)
    method = str(given.get("method", {}).get("name", "fetchsgd"))
    if method not in METHODS:
        raise UserError(f"there is no method {method!r}{_did_you_mean(method, METHODS)}")
    known = _known_settings(options, method)
    given = merge(given, parse_assignments(assignments, known))
    seed = _typed("train.seed", given.get("train", {}).get("seed", TrainSettings.seed), int)
    _require(0 <= seed < 2**63, "train.seed must be from 0 to 2^63 - 1", seed)
    task_given = {k: v for k, v in given.get("task", {}).items() if k != "name"}
    refuse_unknown({"task": task_given}, known)
    chosen = {k: _like(f"task.{k}", v, options[k]) for k, v in task_given.items()}
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
        "method": {"name": method, **_defaults(METHODS[method])},
        "train": _defaults(TrainSettings),
        "schedule": _defaults(Schedule),
        "local": _defaults(LocalWork),
        "upload": _defaults(UploadSettings),
        "download": _defaults(DownloadSettings),
    }


def _defaults(kind: type) -> dict[str, Any]:
    found = {}
    for field in fields(kind):
        if field.init and field.name not in NOT_OPTIONS:
            made = None if field.default_factory is MISSING else field.default_factory()
            found[field.name] = made if field.default is MISSING else field.default
    return found


def _preset(task: Task, method: str) -> Settings:
    preset = {name: values for name, values in task.preset.items() if name != "methods"}
    for_method = dict(task.preset.get("methods", {}).get(method, {}))
    sections = {k: for_method.pop(k) for k in list(for_method) if k in SECTIONS}
    return merge(preset, {"method": for_method}, sections)


def refuse_unknown(given: Settings, known: Settings) -> None:
    """The sentence for a setting that there is not."""
    for section, values in given.items():
        for key in values:
            if key not in known[section]:
                hint = _did_you_mean(key, known[section])
                raise UserError(f"there is no setting {section}.{key}{hint}")


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
    _check_ranges(config, clients)
    return config


def check_types(section: str, values: dict[str, Any], kind: type) -> None:
    """Turn the values into the types of that dataclass, or a sentence."""
    hints = get_type_hints(kind)
    for key, value in values.items():
        values[key] = _typed(f"{section}.{key}", value, hints[key])


def _like(name: str, value: Any, default: Any) -> Any:
    return value if default is None else _typed(name, value, type(default))


def _typed(name: str, value: Any, wanted: Any) -> Any:
    """The value as the wanted type, or a sentence."""
    if get_origin(wanted) is Literal:
        if value not in get_args(wanted):
            choices = ", ".join(repr(choice) for choice in get_args(wanted))
            raise UserError(f"{name} must be one of {choices}, got {value!r}")
        return value
    wanted = get_origin(wanted) or wanted
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if wanted is float and is_number:
        return float(value)
    if wanted is int and is_number and value == int(value):
        return int(value)
    if wanted in (str, bool, list, dict) and isinstance(value, wanted):
        return value
    names = {
        float: "a number",
        int: "a whole number",
        str: "a text",
        bool: "true or false",
        list: "a list",
    }
    raise UserError(f"{name} must be {names.get(wanted, wanted.__name__)}, got {value!r}")


def _check_ranges(config: Config, clients: int) -> None:
    train, schedule, local = config.train, config.schedule, config.local
    _require(train.epochs > 0, "train.epochs must be above 0", train.epochs)
    _require(
        train.baseline_epochs > 0, "train.baseline_epochs must be above 0", train.baseline_epochs
    )
    _require(train.weight_decay >= 0, "train.weight_decay must be at least 0", train.weight_decay)
    _require(train.eval_every > 0, "train.eval_every must be above 0", train.eval_every)
    _require(
        train.checkpoint_every >= 0,
        "train.checkpoint_every must be at least 0",
        train.checkpoint_every,
    )
    for key in ("diagnose_every", "diagnose_window"):
        value = getattr(train, key)
        _require(value >= 1, f"train.{key} must be at least 1", value)
    _require(
        not train.diagnose or config.method in DIAGNOSED,
        f"train.diagnose looks at the server's error, which only {' and '.join(DIAGNOSED)} have",
        config.method,
    )
    _require(
        1 <= train.clients_per_round <= clients,
        f"train.clients_per_round must be from 1 to the task's {clients} clients",
        train.clients_per_round,
    )
    _require(
        schedule.kind in KINDS, f"schedule.kind must be one of {', '.join(KINDS)}", schedule.kind
    )
    _require(schedule.peak >= 0, "schedule.peak must be at least 0", schedule.peak)
    if schedule.kind == "triangular":
        inside = 0 <= schedule.pivot <= train.baseline_epochs
        end = f"train.baseline_epochs = {train.baseline_epochs:g}"
        _require(inside, f"schedule.pivot must be from 0 to {end}", schedule.pivot)
    if schedule.kind == "piecewise":
        epochs = [point[0] for point in schedule.points if len(point) == 2]
        good = len(epochs) == len(schedule.points) > 0 and epochs == sorted(epochs)
        _require(
            good, "schedule.points must be pairs [epoch, rate] in order of epoch", schedule.points
        )
    _require(local.epochs >= 0, "local.epochs must be at least 0", local.epochs)
    _require(local.batch_size >= 0, "local.batch_size must be at least 0", local.batch_size)
    _require(local.clip >= 0, "local.clip must be at least 0", local.clip)
    _require(
        0 < local.lr_decay <= 1, "local.lr_decay must be above 0 and at most 1", local.lr_decay
    )
    _require(config.download.step > 0, "download.step must be above 0", config.download.step)
    _require(config.download.log >= 1, "download.log must be at least 1", config.download.log)
    if config.method == "fedavg":
        _require(local.epochs >= 1, "fedavg needs local.epochs of at least 1", local.epochs)
    if local.is_one_gradient:
        for key, unused in (("batch_size", 0), ("lr_decay", 1.0)):
            value = getattr(local, key)
            _require(value == unused, f"local.{key} has no effect unless local.epochs >= 1", value)


def _require(condition: bool, sentence: str, value: Any) -> None:
    if not condition:
        raise UserError(f"{sentence}, got {value!r}")
