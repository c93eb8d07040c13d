"""Numbers and settings as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fetchsgd.report.runs import Run
from fetchsgd.report.traffic import PAPER, WIRE

NOTHING = "–"
COUNTED = {WIRE: "on the wire", PAPER: "as the paper counts"}


def times(compression: float | None) -> str:
    """A compression, to three digits: 1×, 3.74×, 1,240×."""
    if compression is None:
        return NOTHING
    return f"{_three_digits(compression)}×"


def size(number: int | None) -> str:
    """Bytes, in powers of a thousand."""
    if number is None:
        return NOTHING
    amount = float(number)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.5:
            return f"{_three_digits(amount)} {unit}"
        amount /= 1000
    return f"{_three_digits(amount)} PB"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{_three_digits(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def measured(value: float | None, metric: str) -> str:
    """The value of a metric: accuracy in percent, everything else as it is."""
    if value is None:
        return NOTHING
    return f"{100 * value:.2f} %" if metric == "accuracy" else f"{value:.2f}"


def axis_title(metric: str, higher_is_better: bool) -> str:
    if metric == "accuracy":
        return "Test accuracy (%)"
    return f"Test {metric}" + ("" if higher_is_better else " (lower is better)")


def setting_name(key: str) -> str:
    """The options of a method go by their own name, all others keep their table's."""
    return key.removeprefix("method.")


def setting_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(setting_value, value)) + "]"
    return str(value)


def settings(run: Run, keys: Sequence[str]) -> str:
    """The named settings of a run in one line: `k=500, bits=4`, in the short names of `--set`."""
    # A step is told only where the grid is one of steps, so it says both.
    implied = "download.grid" if "download.step" in keys and "download.step" in run.settings else ""
    present = [key for key in keys if key in run.settings and key != implied]
    return ", ".join(f"{_short_name(key)}={setting_value(run.settings[key])}" for key in present)


def figure_name(kind: str, counted: str) -> str:
    """What the name of a figure's files ends in; those on the wire are the main ones."""
    return kind if counted == WIRE else f"{kind}-paper"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _short_name(key: str) -> str:
    return setting_name(key).removeprefix("upload.").removeprefix("download.")


def _three_digits(number: float) -> str:
    if number >= 99.95:
        return f"{number:,.0f}"
    decimals = 1 if number >= 9.995 else 2
    text = f"{number:.{decimals}f}" if number >= 0.01 or number == 0 else f"{number:.2g}"
    return text.rstrip("0").rstrip(".") if "." in text else text
