"""Settings: ten sections, read from TOML and the command line, checked before any work starts.

    [task]      name, and the options of the task
    [method]    name, and the options of the method
    [train]     how long, how many clients, which device
    [schedule]  the learning rate
    [local]     what a client does with its data
    [upload]    how the numbers that a client sends are written
    [download]  how weights are quantised, and so how changes to them are written
    [privacy]   clipping, noise, and what they promise
    [merge]     how replies become one update, and which lies that withstands
    [attack]    liars among simulated clients

Later layers win: our defaults, the task's preset, its preset for the method, the file, --set.
"""

from fetchsgd.runs.settings.assignments import (
    Assignment,
    parse_assignments,
    refuse_unknown,
)
from fetchsgd.runs.settings.changes import changes
from fetchsgd.runs.settings.layers import Made, merge, resolve, with_names
from fetchsgd.runs.settings.objects import Written, as_settings
from fetchsgd.runs.settings.parts import METHOD, PARTS, Part
from fetchsgd.runs.settings.sections import Config
from fetchsgd.runs.settings.types import check_types

__all__ = [
    "METHOD",
    "PARTS",
    "Assignment",
    "Config",
    "Made",
    "Part",
    "Written",
    "as_settings",
    "changes",
    "check_types",
    "merge",
    "parse_assignments",
    "refuse_unknown",
    "resolve",
    "with_names",
]
