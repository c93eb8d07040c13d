"""The settings of a run: those in which runs are compared, the series they make, and their names.

A series is a line of a figure. A method has one with numbers as in the paper, and one with fewer
bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fetchsgd.runs.older import FETCHSGD, as_meant, form_of

# Settings that say how numbers are written, with what they were before they were settings.
NUMBER_SETTINGS = {"upload.bits": 32, "download.grid": "float32"}
# The same for how examples are split among clients, in tasks that split them.
_SPLIT_SETTINGS = {"task.alpha": 0.5, "task.sizes": "equal", "task.exponent": 1.5}
# And for what FetchSGD sends of its errors.
_ERROR_SETTINGS = {"method.error": "vanilla", "method.recovery": "top_k"}
# Names a quantiser of the user's own. Where it is ours, the setting is left out: bits say it all.
QUANTISER, _OURS = "upload.quantiser", "bits"
_FORM = "method.hash"
SUM, _PLAIN = "upload.sum", "plain"
# Who adds weight decay. Where that is left open, clients do, if their messages are not rounded.
DECAY = "train.weight_decay_by"
# Options of sums modulo 2^b; but for the bits, one that is as usual says nothing about a run.
USUAL_SUMS = {
    "upload.wrap_probability": 1e-3,
    "upload.sum_step": 0.0,
    "upload.first_step": 1.0,
    "upload.sum_clip": 0.0,
    "upload.secure": False,
    "upload.colluding": 0.1,
    "upload.dropping": 0.1,
    "upload.security_bits": 40,
}
# Settings that older runs do not have, with what was done then: as usual, they say nothing.
USUAL = {
    "task.channels": 0,
    "task.hidden": 0,
    "method.state_bits": 32,
    "method.nesterov": False,
    "train.average": 0.0,
    "download.by_size": False,
    "train.leaving": 0,
    "train.leave_every": 0,
    "local.steps": 0,
    "local.optimizer": "sgd",
    "local.momentum": 0.0,
    "local.beta1": 0.9,
    "local.beta2": 0.999,
    "local.eps": 1e-8,
    "local.state": "drop",
    "local.outer_rate": 1.0,
    "merge.name": "mean",
    "attack.name": "none",
}
_PRIVACY_MODE = "privacy.mode"  # where it is off, no other setting of privacy has an effect
# Settings that mean something only where another has a certain value.
DEPENDENT = {
    **dict.fromkeys(
        ("method.decode", "method.noise_limit", "method.revisit", "method.revisit_rounds"),
        (_FORM, "fresh"),
    ),
    **dict.fromkeys(
        ("method.error_reset", "method.lr_position", "method.error", "method.recovery"),
        (_FORM, "fixed"),
    ),
    **dict.fromkeys(
        ("download.step", "download.log", "download.coarse"), ("download.grid", "steps")
    ),
    **dict.fromkeys(("method.window", "method.window_form"), ("method.error", "window")),
    "method.window_eps": ("method.window_form", "histogram"),
    "method.tau": ("method.recovery", "threshold"),
    "task.alpha": ("task.split", "dirichlet"),
    "task.exponent": ("task.sizes", "power_law"),
}
# Settings that say which run it is, or where it ran and how it was observed: not what was learned.
_NOT_COMPARED = {
    *("task.name", "task.folder", "method.name", "train.seed"),
    *("train.device", "train.eval_every", "train.checkpoint_every"),
    *("train.diagnose", "train.diagnose_every", "train.diagnose_window", "privacy.random"),
}


class Series(NamedTuple):
    """Runs of a method whose numbers are all 32-bit floats, or some of whose numbers are not."""

    method: str
    low_bit: bool = False

    @property
    def key(self) -> str:
        """A name for scripts and data."""
        return f"{self.method}-low-bit" if self.low_bit else self.method


def method_of(name: str, config: Mapping[str, Any]) -> str:
    """What a report calls a method of this name."""
    return form_of(name, as_meant(config).get("method", {}))


def series_of(method: str, settings: Mapping[str, Any]) -> Series:
    numbers = {key: settings.get(key, value) for key, value in NUMBER_SETTINGS.items()}
    if method == FETCHSGD and numbers["download.grid"] == "steps":  # as a matter of course
        del numbers["download.grid"]
    plain = all(NUMBER_SETTINGS[key] == value for key, value in numbers.items())
    return Series(method, low_bit=not plain or QUANTISER in settings or SUM in settings)


def compared_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a config as flat settings in which runs may be compared.

    Runs of older versions get the values that were implied then, and settings without effect are
    dropped.
    """
    given = {
        key: value
        for key, value in _flat(as_meant(config))
        if key not in _NOT_COMPARED and not (key in USUAL and value == USUAL[key])
    }
    if given.get(_PRIVACY_MODE, "off") == "off":
        given = {key: value for key, value in given.items() if not key.startswith("privacy.")}
    if given.get(SUM, _PLAIN) == _PLAIN:
        given.pop(SUM, None)
    elif _is_ours(given, SUM):
        given = {key: value for key, value in given.items() if USUAL_SUMS.get(key) != value}
    implied = NUMBER_SETTINGS | (_SPLIT_SETTINGS if "task.split" in given else {})
    implied |= _ERROR_SETTINGS if "method.error_reset" in given else {}
    if given.get(QUANTISER, _OURS) == _OURS:
        given.pop(QUANTISER, None)
    else:
        implied.pop("upload.bits")
    full = {**given, **{key: value for key, value in implied.items() if key not in given}}
    decided = {key: rule for key, rule in DEPENDENT.items() if _is_ours(full, rule[0])}
    for key, (other, value) in decided.items():  # in an order in which no one is dropped too late
        if full.get(other) != value:
            full.pop(key, None)
    if full.get(DECAY) == "auto" and _sends_floats(full):
        full[DECAY] = "clients"
    return full


def decay_may_be(settings: Mapping[str, Any]) -> set[Any]:
    """What a run may say of who decays weights, to the same effect."""
    told = settings.get(DECAY)
    return {told, "auto"} if told == "clients" and _sends_floats(settings) else {told}


def _sends_floats(settings: Mapping[str, Any]) -> bool:
    """Whether clients send their numbers as they are."""
    return settings.get("upload.bits") == 32 and not {QUANTISER, SUM} & settings.keys()


def _is_ours(settings: Mapping[str, Any], key: str) -> bool:
    """Whether a part of ours has this setting; one of the user's own may have the same options."""
    return key in settings and ":" not in str(settings[key])


def setting_name(key: str) -> str:
    """The options of a method go by their own name; all others keep the name of their section."""
    return key.removeprefix("method.")


def setting_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(setting_value, value)) + "]"
    return str(value)


def settings_line(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The named settings in one line: `k=500, bits=4`, in the short names of `--set`."""
    # Of our grids only that of steps has a step, so it implies the grid.
    has_step = "download.step" in keys and "download.step" in settings
    implied = "download.grid" if has_step and _is_ours(settings, "download.grid") else ""
    present = [key for key in keys if key in settings and key != implied]
    return ", ".join(f"{_short_name(key)}={setting_value(settings[key])}" for key in present)


def _short_name(key: str) -> str:
    return setting_name(key).removeprefix("upload.").removeprefix("download.")


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
