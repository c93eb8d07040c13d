"""Settings in TOML: sections of plain values."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fetchsgd.errors import UserError

Settings = dict[str, dict[str, Any]]


def read_toml(path: Path) -> Settings:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error


def write_toml(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections of plain values, as they are here, in TOML."""
    parts = []
    for section, values in settings.items():
        lines = [f"{key} = {_toml_value(value)}" for key, value in values.items()]
        parts.append("\n".join([f"[{section}]", *lines]) + "\n")
    return "\n".join(parts)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON's escapes are TOML's, but only TOML wants one for DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return repr(value)
