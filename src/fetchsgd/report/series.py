"""Series: the lines of a figure. A method has one as in the paper, and one with fewer bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

# The settings that say how numbers are written, with what they were before they were settings.
NUMBER_SETTINGS = {"upload.bits": 32, "download.grid": "float32"}
# The same for how examples are dealt out to clients, where a task deals them out.
SPLIT_SETTINGS = {"task.alpha": 0.5, "task.sizes": "equal", "task.exponent": 1.5}
# And for what FetchSGD sends of its errors.
ERROR_SETTINGS = {"method.error": "vanilla", "method.recovery": "top_k"}
# Settings that mean something only where another has a certain value.
DEPENDENT = {
    **dict.fromkeys(("download.step", "download.log"), ("download.grid", "steps")),
    **dict.fromkeys(("method.window", "method.window_form"), ("method.error", "window")),
    "method.window_eps": ("method.window_form", "histogram"),
    "method.tau": ("method.recovery", "threshold"),
    "task.alpha": ("task.split", "dirichlet"),
    "task.exponent": ("task.sizes", "power_law"),
}


class Series(NamedTuple):
    """Runs of a method whose numbers are all plain 32-bit floats, or of which some are not."""

    method: str
    low_bit: bool = False

    @property
    def key(self) -> str:
        """A name for scripts and data."""
        return f"{self.method}-low-bit" if self.low_bit else self.method


def series_of(method: str, settings: Mapping[str, Any]) -> Series:
    plain = all(settings.get(key, value) == value for key, value in NUMBER_SETTINGS.items())
    return Series(method, low_bit=not plain)


def with_number_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that compare: older runs get what went without saying, and idle ones are dropped."""
    implied = NUMBER_SETTINGS | (SPLIT_SETTINGS if "task.split" in settings else {})
    implied |= ERROR_SETTINGS if "method.error_reset" in settings else {}
    full = {**settings, **{k: v for k, v in implied.items() if k not in settings}}
    for key, (on, value) in DEPENDENT.items():  # one may hang on another, which stands before it
        if full.get(on) != value:
            full.pop(key, None)
    return full
