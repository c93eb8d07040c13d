"""`fetchsgd tasks` and `fetchsgd methods`: what there is to name, and its options."""

from __future__ import annotations

import sys
from typing import Any

from rich.table import Table

from fetchsgd.cli.output import console, say
from fetchsgd.methods import METHODS
from fetchsgd.named import REQUIRED
from fetchsgd.runs.settings import METHOD
from fetchsgd.tasks import TASKS, task_options


def tasks() -> None:
    """List the tasks and their options."""
    table = Table("task", "what", "options", box=None)
    for name, function in TASKS.items():
        table.add_row(name, _first_line(function.__doc__), _options(task_options(function)))
    console.print(table)
    say("or your own function: package.module:function (see examples/custom_task.py)")
    say("'fetchsgd settings task' says what the options mean")


def methods() -> None:
    """List the methods and their options."""
    table = Table("method", "what", "options", box=None)
    for name, kind in METHODS.items():
        about = _first_line(sys.modules[kind.__module__].__doc__)
        table.add_row(name, about, _options(METHOD.options(name)))
    console.print(table)
    say("or your own class: package.module:Class")
    say("'fetchsgd settings method' says what the options mean")


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def _options(options: dict[str, Any]) -> str:
    """Those without a default by their name alone."""
    return ", ".join(
        key if default is REQUIRED else f"{key}={default!r}" for key, default in options.items()
    )
