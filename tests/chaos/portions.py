"""Results of campaigns in a file, one line a portion: a long one goes on where it ended."""

from __future__ import annotations

import json
from pathlib import Path

from fetchsgd.runs.environment import commit


def is_there(out: Path | None, name: str, seed: int, amount: int) -> bool:
    """Whether the file holds this portion, and nothing has been changed since."""
    wanted = {"name": name, "seed": seed, "amount": amount, "commit": commit()}
    if out is None or not out.exists() or str(wanted["commit"]).endswith(("+", "unknown")):
        return False
    return any(wanted.items() <= json.loads(line).items() for line in out.read_text().splitlines())


def tell(line: str, out: Path | None) -> None:
    """Print it, and add it to the file if there is one."""
    print(line, flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a") as file:
            file.write(f"{line}\n")
