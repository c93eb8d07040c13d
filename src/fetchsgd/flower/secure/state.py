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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.secure import ClientState, Journal
from fetchsgd.secure.frames import read_header
from fetchsgd.secure.messages import read_invitation

log = logging.getLogger("flwr.fetchsgd")
MAGIC = b"fetchsgd.secure.1"
_HEAD = struct.Struct("<32sQQ")
MOST_SECONDS = 24 * 3600.0  # of a round


@dataclass(frozen=True)
class Kept:
    """The state after an answer, and the answer with the digest of what it answers.

    lineage: of the server's run, by which a client knows that its round is over.
    """

    state: ClientState
    asked: bytes
    answer: bytes
    lineage: str = ""

    def to_bytes(self) -> bytes:
        lineage = self.lineage.encode()
        head = MAGIC + _HEAD.pack(self.asked, len(self.answer), len(lineage))
        body = head + lineage + self.answer + self.state.to_bytes()
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> Kept:
        body, digest = data[:-32], data[-32:]
        if not body.startswith(MAGIC) or hashlib.sha256(body).digest() != digest:
            raise ValueError("it is damaged, or of another program")
        asked, length, name = _HEAD.unpack_from(body, len(MAGIC))
        start = len(MAGIC) + _HEAD.size
        at = start + name
        state = ClientState.from_bytes(body[at + length :])
        return cls(state, asked, body[at : at + length], body[start:at].decode())

    @property
    def round(self) -> int:
        _, client, _ = read_header(self.state.invitation)
        return read_invitation(self.state.invitation, client).round


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

    def forget_if_over(self, lineage: str, round: int) -> None:
        """What is left of a round that was dropped: its seed opens what the server has seen.

        It is over when the same run is at a later one, and after a day in any case.
        """
        kept = self.load()
        if kept is None:
            return
        is_over = kept.lineage == lineage and kept.round < round
        if is_over or time.time() - self.path.stat().st_mtime > MOST_SECONDS:
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


def forget_if_over(node_config: Mapping[str, Any], client: int, lineage: str, round: int) -> None:
    """Whenever the node is greeted."""
    if isinstance(folder := node_config.get("state"), str):
        SecureFolder(Path(folder), client).forget_if_over(lineage, round)


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
