"""The files of a run folder, read so that whatever is wrong in them gets a clear sentence."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fetchsgd.report.errors import ReportError


@dataclass(frozen=True)
class Fields:
    """A table of values that knows where it was read; every look into it is checked."""

    where: str
    values: Mapping[str, Any]

    def text(self, name: str) -> str:
        value = self._present(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def flag(self, name: str) -> bool:
        value = self._present(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def table(self, name: str) -> dict[str, Any]:
        value = self._present(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "a table")
        return value

    def whole(self, name: str) -> int:
        value = self._present(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "a whole number")
        return value

    def number(self, name: str) -> float:
        value = self.number_or_null(name)
        if value is None:
            raise self._wrong(name, "a finite number")
        return value

    def number_or_null(self, name: str) -> float | None:
        """A number that may be null; what is not finite counts as null."""
        value = self._present(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number or null")
        return float(value) if math.isfinite(value) else None

    def number_if_any(self, name: str) -> float | None:
        return self.number_or_null(name) if name in self.values else None

    def _present(self, name: str) -> Any:
        if name not in self.values:
            raise ReportError(f"{self.where}: the field '{name}' is missing")
        return self.values[name]

    def _wrong(self, name: str, right: str) -> ReportError:
        return ReportError(
            f"{self.where}: the field '{name}' must be {right}, got {self.values[name]!r}"
        )


def read_config(path: Path) -> Fields:
    try:
        return Fields(str(path), tomllib.loads(_read_text(path)))
    except tomllib.TOMLDecodeError as error:
        raise ReportError(f"{path}: not valid TOML ({error})") from error


def read_result(path: Path) -> Fields | None:
    """The result, or None while there is none because the run has not ended."""
    if not path.exists():
        return None
    try:
        values = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise ReportError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(values, dict):
        raise ReportError(f"{path}: must hold one JSON object, got {type(values).__name__}")
    return Fields(str(path), values)


def read_metrics(path: Path) -> list[Fields]:
    """One entry a line. A crash may cut the last line short, and then it is left out."""
    lines = [(n, line) for n, line in enumerate(_read_text(path).splitlines(), 1) if line.strip()]
    entries = []
    for number, line in lines:
        where = f"{path}, line {number}"
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            if number == lines[-1][0]:
                break
            raise ReportError(f"{where}: not valid JSON ({error})") from error
        if not isinstance(values, dict):
            raise ReportError(f"{where}: must hold one JSON object, got {values!r}")
        entries.append(Fields(where, values))
    return entries


def _read_text(path: Path) -> str:
    try:
        # A crash can also cut a character in two, in a line that is then left out.
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror})") from error
