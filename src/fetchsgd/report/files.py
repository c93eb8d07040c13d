"""The files of a run, read so that whatever is wrong in them gets a clear sentence."""

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

    def items(self, name: str) -> list[dict[str, Any]]:
        value = self._present(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list of tables")
        for number, item in enumerate(value, 1):
            if not isinstance(item, dict):
                raise ReportError(
                    f"{self.where}: entry {number} of the field '{name}' must be a table, "
                    f"got {_short(item)}"
                )
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
        value = self._present(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number or null")
        return float(value)

    def number_if_any(self, name: str) -> float | None:
        return self.number_or_null(name) if name in self.values else None

    def _present(self, name: str) -> Any:
        if name not in self.values:
            raise ReportError(f"{self.where}: the field '{name}' is missing")
        return self.values[name]

    def _wrong(self, name: str, right: str) -> ReportError:
        return ReportError(
            f"{self.where}: the field '{name}' must be {right}, got {_short(self.values[name])}"
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
        values = _parsed(_read_text(path))
    except json.JSONDecodeError as error:
        raise ReportError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(values, dict):
        raise ReportError(f"{path}: must hold one JSON object, got {type(values).__name__}")
    return Fields(str(path), values)


def read_metrics(path: Path) -> list[Fields]:
    """One entry a line. A crash may cut the last line short, and then it is left out."""
    lines = _lines(path)
    if lines and not _is_json(lines[-1][1]):
        lines.pop()
    return [_object(path, *line) for line in lines]


def read_objects(path: Path) -> list[Fields]:
    """One entry a line, and no line may be broken."""
    return [_object(path, *line) for line in _lines(path)]


def _lines(path: Path) -> list[tuple[int, str]]:
    # Not splitlines: a string may hold other characters that it would take for a line's end.
    return [(n, line) for n, line in enumerate(_read_text(path).split("\n"), 1) if line.strip()]


def _is_json(line: str) -> bool:
    try:
        _parsed(line)
    except json.JSONDecodeError:
        return False
    return True


def _object(path: Path, number: int, line: str) -> Fields:
    where = f"{path}, line {number}"
    try:
        values = _parsed(line)
    except json.JSONDecodeError as error:
        raise ReportError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(values, dict):
        raise ReportError(f"{where}: must hold one JSON object, got {_short(values)}")
    return Fields(where, values)


def _parsed(content: str) -> Any:
    """NaN and infinity become null: they are no JSON, and a report knows no more of them."""

    def finite(digits: str) -> float | None:
        number = float(digits)
        return number if math.isfinite(number) else None

    return json.loads(content, parse_float=finite, parse_constant=lambda _: None)


def _short(value: Any) -> str:
    """A whole result in a sentence would hide the sentence."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."


def _read_text(path: Path) -> str:
    try:
        # A crash can also cut a character in two, in a line that is then left out.
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror})") from error
