"""What a client has signed, so that it never signs anything else in its place.

For each run the latest round and attempt, and of each kind of message the digest of the one that
was signed. An earlier round is refused, so nothing older has to be kept. Nothing in it is secret.
With a file it outlasts the process: an entry is on the disk before the signature is made.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fetchsgd.secure.errors import RefusedError
from fetchsgd.secure.kinds import Kind
from fetchsgd.secure.terms import Terms


@dataclass
class Journal:
    """In memory, or in a file as well."""

    path: Path | None = None
    _runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self._runs = json.loads(self.path.read_text())

    def claim(self, terms: Terms, kind: Kind, digest: bytes) -> None:
        """Refuse to sign this if another was signed in its place, or a later round was begun."""
        entry = self._entry(terms)
        signed = entry["signed"].setdefault(str(kind), digest.hex())
        if signed != digest.hex():
            raise RefusedError(
                f"another message of the kind {kind} was signed in round {terms.round}, attempt"
                f" {terms.attempt}; nothing is signed twice"
            )
        self._runs[terms.run.hex()] = entry
        self._save()

    def _entry(self, terms: Terms) -> dict[str, Any]:
        """A copy of what is known of this round; an empty one if it is new."""
        known = self._runs.get(terms.run.hex())
        if known is None or tuple(known["place"]) < terms.place:
            return {"place": list(terms.place), "signed": {}}
        if tuple(known["place"]) > terms.place:
            raise RefusedError(
                f"round {terms.round}, attempt {terms.attempt}, comes after round"
                f" {known['place'][0]}, attempt {known['place'][1]}; rounds only go up"
            )
        return {"place": known["place"], "signed": dict(known["signed"])}

    def _save(self) -> None:
        if self.path is None:
            return
        beside = self.path.with_name(self.path.name + ".new")
        with beside.open("w") as file:
            json.dump(self._runs, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
