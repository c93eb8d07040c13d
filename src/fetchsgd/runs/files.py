"""The files of a run folder: their names, and how they are written and read.

    config.toml             every setting, resolved
    about.json              the name of the task, that of its metric, and whether higher is better;
                            folders of older versions have none
    metrics.jsonl           one line per evaluation; a crash may cut off the last line
    result.json             when the run has ended
    model.safetensors       the trained model, by the names of its own state_dict
    checkpoint.safetensors  what --resume continues from; in a federation also
                            checkpoint-earlier.safetensors, of an earlier round

NaN and infinity are not JSON: they become null, when written and when read. Whatever is wrong in a
file gets a sentence that names the file and the field. Nothing here needs torch.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fetchsgd.errors import UserError, from_os
from fetchsgd.runs.toml_files import read_toml

CONFIG = "config.toml"
ABOUT = "about.json"
METRICS = "metrics.jsonl"
RESULT = "result.json"
CHECKPOINT = "checkpoint.safetensors"
MODEL = "model.safetensors"


@dataclass(frozen=True)
class Fields:
    """A table of values that knows where it was read; every access is checked."""

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
                raise UserError(
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
            raise UserError(f"{self.where}: the field '{name}' is missing")
        return self.values[name]

    def _wrong(self, name: str, right: str) -> UserError:
        return UserError(
            f"{self.where}: the field '{name}' must be {right}, got {_short(self.values[name])}"
        )


def run_folders(root: Path) -> Iterator[Path]:
    """Every run folder at or below `root`, by name."""
    for config in sorted(root.rglob(CONFIG)):
        if (config.parent / METRICS).is_file():
            yield config.parent


def read_config(folder: Path) -> Fields:
    path = folder / CONFIG
    return Fields(str(path), read_toml(path))


def read_about(folder: Path) -> Fields | None:
    """What is trained and measured, or None in a folder of an older version."""
    return _read_object(folder / ABOUT)


def read_metrics(folder: Path) -> list[Fields]:
    """One entry per line, without a last line that a crash has cut off."""
    path = folder / METRICS
    lines = _lines(path)
    if lines and not _is_json(lines[-1][1]):
        lines.pop()
    return [_object(path, *line) for line in lines]


def read_result(folder: Path) -> Fields | None:
    """The result, or None if the run has not ended."""
    return _read_object(folder / RESULT)


def read_json_lines(path: Path) -> list[Fields]:
    """One entry per line of any file; every line must be whole."""
    return [_object(path, *line) for line in _lines(path)]


def to_json(values: Mapping[str, Any], indent: int | None = None) -> str:
    """One JSON object; NaN and infinity become null."""
    return json.dumps(_finite(values), indent=indent, allow_nan=False)


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the file, force it to disk, and only then take its place."""
    temporary = path.with_name(path.name + ".partial")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # a folder that cannot be written to keeps it
            temporary.unlink(missing_ok=True)
        raise from_os(f"cannot write {path} (what was there before is untouched)", error) from error


def _sync_folder(folder: Path) -> None:
    """That one file has taken the place of another is in the folder, which is forced to disk too.

    Else a power cut could bring the old file back, after clients have heard of the new one.
    """
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot
            raise
    finally:
        os.close(descriptor)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_object(path: Path) -> Fields | None:
    if not path.exists():
        return None
    try:
        values = _parsed(_read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: must hold one JSON object, got {type(values).__name__}")
    return Fields(str(path), values)


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
        raise UserError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(values, dict):
        raise UserError(f"{where}: must hold one JSON object, got {_short(values)}")
    return Fields(where, values)


def _parsed(content: str) -> Any:
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
        raise from_os(f"{path} cannot be read", error) from error
