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

from fetchsgd.runs.settings.assignments import parse_assignments, refuse_unknown
from fetchsgd.runs.settings.layers import Made, merge, resolve
from fetchsgd.runs.settings.sections import Config, method_options
from fetchsgd.runs.settings.types import check_types

__all__ = [
    "Config",
    "Made",
    "check_types",
    "merge",
    "method_options",
    "parse_assignments",
    "refuse_unknown",
    "resolve",
]
