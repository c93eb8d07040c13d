"""What a client has signed, so that it never signs anything else in its place.

For each run the latest round and attempt, and of each kind of message the digest of the one that
was signed. An earlier round is refused, so nothing older has to be kept. Nothing in it is secret.
With a file it outlasts the process: an entry is on the disk before the signature is made. Several
processes may answer for one client at once, as a dishonest server may well arrange: one at a time
reads the file, decides and writes it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fetchsgd.errors import UserError
from fetchsgd.secure.errors import RefusedError
from fetchsgd.secure.kinds import Kind
from fetchsgd.secure.terms import Terms

if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[str]) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)

else:
    import fcntl

    def _lock(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)


@dataclass
class Journal:
    """In memory, or in a file as well."""

    path: Path | None = None
    _runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None:
            self._runs = _read(self.path)

    def claim(self, terms: Terms, kind: Kind, digest: bytes) -> None:
        """Refuse to sign this if another was signed in its place, or a later round was begun."""
        with nullcontext() if self.path is None else _alone(self.path):
            if self.path is not None:
                self._runs = _read(self.path)
            self._claim(terms, kind, digest)

    def _claim(self, terms: Terms, kind: Kind, digest: bytes) -> None:
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


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Other processes wait. The lock ends with its process, however that ends."""
    with path.with_name(path.name + ".lock").open("a") as file:
        _lock(file)
        yield


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """What has been signed; nothing if there is no file."""
    try:
        found = json.loads(path.read_text())
        for entry in found.values():
            _round, _attempt = map(int, entry["place"])
            _digests = [bytes.fromhex(digest) for digest in entry["signed"].values()]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged ({error!r}). It says what this client has signed in secure"
            " aggregation, and without it nothing more can be signed in those runs: restore it, or"
            " remove it once they have all ended"
        ) from error
    return dict(found)
