"""What a client keeps of secure aggregation, in the node's state folder.

    client-0.secure     between the messages of a round: its seed, what the server has sent, and
                        its last answer, for a server that asks again; deleted with the last one
    client-0.journal    what it has signed, so that it never signs anything else in its place

The first is as secret as the client's data, and readable by its owner alone. Both are replaced as a
whole, and on the disk before an answer leaves.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.secure import ClientState, Journal

log = logging.getLogger("flwr.fetchsgd")
MAGIC = b"fetchsgd.secure.1"
_HEAD = struct.Struct("<32sQ")
MOST_SECONDS = 24 * 3600.0  # of a round


@dataclass(frozen=True)
class Kept:
    """The state after an answer, and the answer with the digest of what it answers."""

    state: ClientState
    asked: bytes
    answer: bytes

    def to_bytes(self) -> bytes:
        head = MAGIC + _HEAD.pack(self.asked, len(self.answer))
        body = head + self.answer + self.state.to_bytes()
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> Kept:
        body, digest = data[:-32], data[-32:]
        if not body.startswith(MAGIC) or hashlib.sha256(body).digest() != digest:
            raise ValueError("it is damaged, or of another program")
        asked, length = _HEAD.unpack_from(body, len(MAGIC))
        at = len(MAGIC) + _HEAD.size
        return cls(ClientState.from_bytes(body[at + length :]), asked, body[at : at + length])


def digest_of(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()


@dataclass(frozen=True)
class SecureFolder:
    """The two files of a client."""

    folder: Path
    client: int

    @property
    def path(self) -> Path:
        return self.folder / f"client-{self.client}.secure"

    def load(self) -> Kept | None:
        """None where nothing is, and, with a word in the log, where it is damaged."""
        try:
            return Kept.from_bytes(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("client %d has lost its part in a round: %s", self.client, error)
            return None

    def save(self, kept: Kept) -> None:
        temporary = self.path.with_name(self.path.name + ".partial")
        try:
            temporary.unlink(missing_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(kept.to_bytes())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
            self._sync()
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}") from error

    def forget_if_old(self) -> None:
        """What is left of a round that was dropped: its seed opens what the server has seen."""
        with suppress(OSError):
            if time.time() - self.path.stat().st_mtime > MOST_SECONDS:
                self.delete()

    def delete(self) -> None:
        """The round is over for this client."""
        self.path.unlink(missing_ok=True)
        self._sync()

    def _sync(self) -> None:
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def journal(self) -> Journal:
        path = self.folder / f"client-{self.client}.journal"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return Journal(path)
        except OSError as error:
            raise UserError(f"cannot keep {path}: {error.strerror}") from error


def forget_old(node_config: Mapping[str, Any], client: int) -> None:
    """Asked for whenever the node is greeted."""
    if isinstance(folder := node_config.get("state"), str):
        SecureFolder(Path(folder), client).forget_if_old()


def secure_folder(node_config: Mapping[str, Any], client: int) -> SecureFolder:
    """The node's state folder, or a sentence: what was signed must outlast processes."""
    folder = node_config.get("state")
    if not isinstance(folder, str) or not folder:
        raise UserError(
            "secure aggregation needs a folder in which this client keeps what it has signed; "
            f"""start the SuperNode with --node-config 'partition-id={client} """
            """state="/path/to/folder"'"""
        )
    return SecureFolder(Path(folder), client)
