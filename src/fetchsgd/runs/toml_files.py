"""Settings in TOML: sections of plain values.

Python reads TOML but does not write it. The writer here is our own, because the simulator also runs
on machines where no package for that can be installed, and because it must leave out None, which
TOML does not have. What it writes is read back as it was.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fetchsgd.errors import UserError, from_os

Settings = dict[str, dict[str, Any]]

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
# All that TOML does not take as it is: quotes, the backslash and control characters.
ESCAPED = re.compile(r'[\\"\x00-\x1f\x7f]')


def read_toml(path: Path) -> Settings:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise from_os(f"cannot read {path}", error) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error


def write_toml(
    settings: Mapping[str, Mapping[str, Any]], comments: Mapping[str, str] | None = None
) -> str:
    """Sections of plain values in TOML. None is left out, and so is read back as the default.

    `comments` stand above the settings of these names, as "train.epochs".
    """
    parts = []
    for section, values in settings.items():
        lines = [f"[{_key(section)}]"]
        for key, value in values.items():
            if value is not None:
                name = f"{section}.{key}"
                lines += _comment((comments or {}).get(name, ""))
                lines.append(f"{_key(key)} = {write_value(name, value)}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _comment(text: str) -> list[str]:
    """No control characters: in TOML they end a comment, or are not allowed in one."""
    plain = " ".join(
        ESCAPED.sub(lambda found: found[0] if found[0] in '\\"' else " ", text).split()
    )
    return [f"# {plain}"] if plain else []


def _key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else _text(key, key)


def write_value(name: str, value: Any) -> str:
    """A value as TOML. `name` is for the sentence about one that TOML cannot hold."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, str):
        return _text(name, value)
    if isinstance(value, list | tuple):
        items = (write_value(f"{name}[{i}]", item) for i, item in enumerate(value))
        return f"[{', '.join(items)}]"
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        given = {key: item for key, item in value.items() if item is not None}
        items = (
            f"{_key(key)} = {write_value(f'{name}.{key}', item)}" for key, item in given.items()
        )
        return f"{{{', '.join(items)}}}"
    raise UserError(
        f"{name} must be a text, a number, true or false, or a list or table of these, "
        f"so that config.toml can keep it, got {value!r}"
    )


def _text(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{name} must be valid Unicode, got {text!r}") from error
    escaped = ESCAPED.sub(lambda found: ESCAPES.get(found[0], f"\\u{ord(found[0]):04x}"), text)
    return f'"{escaped}"'
