"""Files that are always whole."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from fetchsgd.errors import UserError


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the file, force it to disk, and only then take its place."""
    temporary = path.with_name(path.name + ".partial")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(
            f"cannot write {path}: {error.strerror}; what was there before is untouched"
        ) from error


def json_line(value: Any, indent: int | None = None) -> str:
    """Valid JSON, whatever was computed: NaN and infinity become null."""
    return json.dumps(finite(value), indent=indent, allow_nan=False)


def finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return value
