"""Which attempt at which round comes next, on the disk before anybody is invited.

Clients refuse a round that comes after a later one, and sign nothing twice in an attempt. So a
server that was killed must not use the number of an attempt again, whatever became of it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from fetchsgd.errors import UserError
from fetchsgd.runs.files import write_atomically
from fetchsgd.secure.terms import RUN_BYTES

FILE = "secure.json"


@dataclass(frozen=True)
class Attempts:
    """In the run folder, beside what names the run's versions."""

    folder: Path
    lineage: str

    def begin(self, round: int) -> tuple[bytes, int]:
        """The name of the run, and the number of this attempt at the round.

        A run that was set back by hand to an earlier round has another name from then on.
        """
        path = self.folder / FILE
        era, last, attempt = self._read(path)
        if round < last:
            era, attempt = era + 1, 0
        else:
            attempt = attempt + 1 if round == last else 0
        about = {"era": era, "round": round, "attempt": attempt}
        write_atomically(path, json.dumps(about).encode())
        name = hashlib.sha256(f"fetchsgd run {self.lineage} {era}".encode()).digest()
        return name[:RUN_BYTES], attempt

    def _read(self, path: Path) -> tuple[int, int, int]:
        if not path.exists():
            return 0, -1, 0
        try:
            about = json.loads(path.read_text())
            return int(about["era"]), int(about["round"]), int(about["attempt"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path} cannot be read: {error}; without it clients would refuse the next round. "
                f"""Write {{"era": 1, "round": -1, "attempt": 0}} to it, with a larger era than """
                "any before"
            ) from error
