"""Tasks: data, model, loss and the settings that suit them."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

from fetchsgd.named import REQUIRED, find
from fetchsgd.tasks.base import ClientData, HeldOut, Task, cross_entropy, is_correct
from fetchsgd.tasks.by_rule import RuledData, from_rule
from fetchsgd.tasks.cifar import cifar10, cifar100
from fetchsgd.tasks.digits import digits
from fetchsgd.tasks.femnist import femnist
from fetchsgd.tasks.own_loss import EachExample, own_loss
from fetchsgd.tasks.personachat import personachat
from fetchsgd.tasks.shakespeare import shakespeare
from fetchsgd.tasks.stored import (
    StoredData,
    from_arrays,
    from_dataset,
    from_datasets,
    from_hugging_face,
)

TASKS: dict[str, Callable[..., Task]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "femnist": femnist,
    "personachat": personachat,
    "shakespeare": shakespeare,
}

NOT_OPTIONS = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)  # *args and **kwargs

__all__ = [
    "TASKS",
    "ClientData",
    "EachExample",
    "HeldOut",
    "RuledData",
    "StoredData",
    "Task",
    "cross_entropy",
    "find_task",
    "from_arrays",
    "from_dataset",
    "from_datasets",
    "from_hugging_face",
    "from_rule",
    "is_correct",
    "own_loss",
    "task_options",
]


def find_task(name: str) -> Callable[..., Task]:
    """One of our tasks by name, or the user's own function by `package.module:function`."""
    return find("task", name, TASKS, form="function")


def task_options(function: Callable[..., Task]) -> dict[str, Any]:
    """The arguments of a task's function but the seed, with their defaults or REQUIRED."""
    return {
        parameter.name: REQUIRED if parameter.default is Parameter.empty else parameter.default
        for parameter in signature(function).parameters.values()
        if parameter.name != "seed" and parameter.kind not in NOT_OPTIONS
    }
