"""What settings may be, alone and together. All mistakes are reported before any work starts."""

from __future__ import annotations

import math
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.runs.settings.parts import ATTACK, MERGE, METHOD
from fetchsgd.runs.settings.sections import KINDS_OF_SECTIONS, Config
from fetchsgd.runs.toml_files import Settings
from fetchsgd.server.schedule import KINDS


def check_ranges(config: Config, clients: int) -> None:
    """UserError for the first setting that is wrong, in a run with this many clients."""
    _check_finite(config.settings)
    _check_train(config, clients)
    _check_schedule(config)
    _check_local(config)
    config.privacy.check()
    for part in (MERGE, ATTACK):
        config.parts[part.setting].made()  # which checks its options


def _check_finite(settings: Settings) -> None:
    """Methods and tasks may give infinity a meaning; none of these sections does."""
    for section in KINDS_OF_SECTIONS:
        for key, value in settings[section].items():
            is_finite = not isinstance(value, float) or math.isfinite(value)
            require(is_finite, f"{section}.{key} must be a finite number", value)


def _check_train(config: Config, clients: int) -> None:
    train = config.train
    require(train.epochs > 0, "train.epochs must be above 0", train.epochs)
    require(
        train.baseline_epochs > 0, "train.baseline_epochs must be above 0", train.baseline_epochs
    )
    require(train.weight_decay >= 0, "train.weight_decay must be at least 0", train.weight_decay)
    require(0 <= train.average < 1, "train.average must be at least 0 and below 1", train.average)
    require(train.eval_every > 0, "train.eval_every must be above 0", train.eval_every)
    require(
        train.checkpoint_every >= 0,
        "train.checkpoint_every must be at least 0",
        train.checkpoint_every,
    )
    for key in ("diagnose_every", "diagnose_window"):
        value = getattr(train, key)
        require(value >= 1, f"train.{key} must be at least 1", value)
    _check_diagnosis(config)
    _check_leaving(config)
    require(
        1 <= train.clients_per_round <= clients,
        f"train.clients_per_round must be from 1 to the task's {clients} clients",
        train.clients_per_round,
    )


def _check_leaving(config: Config) -> None:
    train = config.train
    most = train.clients_per_round
    require(
        0 <= train.leaving <= most,
        f"train.leaving must be from 0 to train.clients_per_round = {most}",
        train.leaving,
    )
    require(train.leave_every >= 0, "train.leave_every must be at least 0", train.leave_every)
    sentence = "train.leaving and train.leave_every go together: how many leave, and how often"
    require(bool(train.leaving) == bool(train.leave_every), sentence, train.leave_every)
    sentence = "train.leaving needs train.sampling = 'stay', where all others stay"
    require(not train.leaving or train.sampling == "stay", sentence, train.leaving)
    sentence = "train.sampling = 'stay' draws nobody, so there is nothing for privacy to gain; take"
    others = "'poisson', 'uniform' or 'epoch'"
    is_private = config.privacy.mode != "off"
    require(not is_private or train.sampling != "stay", f"{sentence} {others}", train.sampling)


def _check_diagnosis(config: Config) -> None:
    having = [name for name, kind in METHOD.known.items() if _has_server_error(kind)]
    require(
        not config.train.diagnose or _has_server_error(config.method_class),
        f"train.diagnose looks at the server's error, which only {' and '.join(having)} have",
        config.method,
    )
    nesterov = config.method_options.get("nesterov", False)
    sentence = "train.diagnose follows a plain momentum: leave out method.nesterov"
    require(not (config.train.diagnose and nesterov), sentence, nesterov)


def _has_server_error(method: type) -> bool:
    """Whether the server keeps what it has not sent; a method without this attribute does not."""
    return bool(getattr(method, "has_server_error", False))


def _check_schedule(config: Config) -> None:
    train, schedule = config.train, config.schedule
    require(
        schedule.kind in KINDS, f"schedule.kind must be one of {', '.join(KINDS)}", schedule.kind
    )
    require(schedule.peak >= 0, "schedule.peak must be at least 0", schedule.peak)
    if schedule.kind == "triangular":
        inside = 0 <= schedule.pivot <= train.baseline_epochs
        end = f"train.baseline_epochs = {train.baseline_epochs:g}"
        require(inside, f"schedule.pivot must be from 0 to {end}", schedule.pivot)
    if schedule.kind == "piecewise":
        epochs = [point[0] for point in schedule.points if len(point) == 2]
        good = len(epochs) == len(schedule.points) > 0 and epochs == sorted(epochs)
        good = good and all(math.isfinite(number) for point in schedule.points for number in point)
        require(
            good, "schedule.points must be pairs [epoch, rate] in order of epoch", schedule.points
        )


# Settings of local work that need something else, with the values that mean nothing.
STEPS = {"batch_size": 0, "lr_decay": 1.0, "optimizer": "sgd", "momentum": 0.0, "outer_rate": 1.0}
ADAMW = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


def _check_local(config: Config) -> None:
    local = config.local
    for key in ("epochs", "steps", "batch_size", "clip"):
        value = getattr(local, key)
        require(value >= 0, f"local.{key} must be at least 0", value)
    require(0 < local.lr_decay <= 1, "local.lr_decay must be above 0 and at most 1", local.lr_decay)
    require(local.outer_rate > 0, "local.outer_rate must be above 0", local.outer_rate)
    if getattr(config.method_class, "needs_local_steps", False):
        sentence = f"{config.method} needs local.epochs of at least 1, or local.steps"
        require(not local.is_one_gradient, sentence, local.epochs)
    if local.is_one_gradient:
        needs = "unless local.epochs >= 1 or local.steps >= 1"
        for key, unused in STEPS.items():
            value = getattr(local, key)
            require(value == unused, f"local.{key} has no effect {needs}", value)
    _check_optimizer(config)


def _check_optimizer(config: Config) -> None:
    local = config.local
    for key in ("momentum", "beta1", "beta2"):
        value = getattr(local, key)
        require(0 <= value < 1, f"local.{key} must be at least 0 and below 1", value)
    require(local.eps > 0, "local.eps must be above 0", local.eps)
    if local.optimizer == "adamw":
        sentence = "local.momentum is of SGD; with local.optimizer = 'adamw' it is local.beta1"
        require(not local.momentum, sentence, local.momentum)
    else:
        for key, usual in ADAMW.items():
            value = getattr(local, key)
            require(value == usual, f"local.{key} needs local.optimizer = 'adamw'", value)
    sentence = (
        "local.state = 'keep' needs local steps by an optimiser that remembers: "
        "local.optimizer = 'adamw', or local.momentum above 0"
    )
    require(local.state == "drop" or local.keeps_state, sentence, local.state)


def require(condition: bool, sentence: str, value: Any) -> None:
    """The sentence, unless the condition holds."""
    if not condition:
        raise UserError(f"{sentence}, got {value!r}")
