"""What settings may be, alone and together. All is said before any work starts."""

from __future__ import annotations

from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.runs.settings.sections import Config
from fetchsgd.server.schedule import KINDS

DIAGNOSED = ("fetchsgd", "true_topk")  # the methods with an error on the server


def check_ranges(config: Config, clients: int) -> None:
    """The first sentence that there is to say of a run with so many clients."""
    train, schedule, local = config.train, config.schedule, config.local
    require(train.epochs > 0, "train.epochs must be above 0", train.epochs)
    require(
        train.baseline_epochs > 0, "train.baseline_epochs must be above 0", train.baseline_epochs
    )
    require(train.weight_decay >= 0, "train.weight_decay must be at least 0", train.weight_decay)
    require(train.eval_every > 0, "train.eval_every must be above 0", train.eval_every)
    require(
        train.checkpoint_every >= 0,
        "train.checkpoint_every must be at least 0",
        train.checkpoint_every,
    )
    for key in ("diagnose_every", "diagnose_window"):
        value = getattr(train, key)
        require(value >= 1, f"train.{key} must be at least 1", value)
    require(
        not train.diagnose or config.method in DIAGNOSED,
        f"train.diagnose looks at the server's error, which only {' and '.join(DIAGNOSED)} have",
        config.method,
    )
    require(
        1 <= train.clients_per_round <= clients,
        f"train.clients_per_round must be from 1 to the task's {clients} clients",
        train.clients_per_round,
    )
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
        require(
            good, "schedule.points must be pairs [epoch, rate] in order of epoch", schedule.points
        )
    require(local.epochs >= 0, "local.epochs must be at least 0", local.epochs)
    require(local.batch_size >= 0, "local.batch_size must be at least 0", local.batch_size)
    require(local.clip >= 0, "local.clip must be at least 0", local.clip)
    require(0 < local.lr_decay <= 1, "local.lr_decay must be above 0 and at most 1", local.lr_decay)
    require(config.download.step > 0, "download.step must be above 0", config.download.step)
    require(config.download.log >= 1, "download.log must be at least 1", config.download.log)
    if config.method == "fedavg":
        require(local.epochs >= 1, "fedavg needs local.epochs of at least 1", local.epochs)
    if local.is_one_gradient:
        for key, unused in (("batch_size", 0), ("lr_decay", 1.0)):
            value = getattr(local, key)
            require(value == unused, f"local.{key} has no effect unless local.epochs >= 1", value)


def require(condition: bool, sentence: str, value: Any) -> None:
    """The sentence, unless the condition holds."""
    if not condition:
        raise UserError(f"{sentence}, got {value!r}")
