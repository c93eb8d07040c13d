"""Tasks: data, model, loss and the settings that suit them."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.tasks.base import ClientData, Task, cross_entropy, is_correct
from fetchsgd.tasks.cifar import cifar10, cifar100
from fetchsgd.tasks.digits import digits
from fetchsgd.tasks.femnist import femnist
from fetchsgd.tasks.personachat import personachat
from fetchsgd.tasks.shakespeare import shakespeare

TASKS: dict[str, Callable[..., Task]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "femnist": femnist,
    "personachat": personachat,
    "shakespeare": shakespeare,
}

__all__ = [
    "TASKS",
    "ClientData",
    "Task",
    "cross_entropy",
    "find_task",
    "is_correct",
    "task_options",
]


def find_task(name: str) -> Callable[..., Task]:
    """A task of ours by name, or a function of the user's by `package.module:function`."""
    if name in TASKS:
        return TASKS[name]
    if ":" not in name:
        near = get_close_matches(name, TASKS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(
            f"there is no task {name!r}; {hint}known are {', '.join(TASKS)}, "
            "and functions of your own as package.module:function"
        )
    module_name, function_name = name.split(":", 1)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does, so that a file beside the user is found
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"task {name!r}: cannot import {error.name!r}; is it on the path?"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UserError(f"task {name!r}: {module_name} has no function {function_name!r}")
    found: Callable[..., Task] = function
    return found


def task_options(function: Callable[..., Task]) -> dict[str, Any]:
    """The options of a task with their defaults: the arguments of its function but the seed."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.name != "seed"}
