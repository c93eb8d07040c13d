"""What a client keeps between two messages: the version that it holds, and memory of its own.

Flower's `context.state` is the SuperNode's memory. It ends with the SuperNode, and all of it goes
from there to the ClientApp's process and back with every message. In a folder of the node's own,
`--node-config 'state="/path/to/folder"'`, it outlives both and does not travel. What is not whole
counts as lost: the client then asks the server for everything.
"""

from __future__ import annotations

import logging
import zlib
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fetchsgd.errors import UserError
from fetchsgd.exchange.client_state import ClientState

log = logging.getLogger("flwr.fetchsgd")

ABOUT, VECTORS = "fetchsgd.about", "fetchsgd.vectors"  # in Flower's memory
FORMAT = "fetchsgd.kept.2"  # of files
OLDER = "fetchsgd.kept.1"  # whose checksum is of the vectors alone


class About(NamedTuple):
    """Which version of which run; of none where nothing was kept."""

    lineage: str = ""
    version: int = 0


class Keeper(Protocol):
    """Keeps one thing: the last that was saved."""

    def about(self) -> About:
        """What `load` would give, without its vectors."""

    def load(self) -> ClientState | None: ...

    def save(self, kept: ClientState) -> None: ...


def keeper(context: Context, client: int) -> Keeper:
    """A folder if the node has one, else Flower's memory."""
    folder = context.node_config.get("state")
    if folder is None:
        return InContext(context)
    if not isinstance(folder, str) or not folder:
        raise UserError(
            f"state must name a folder of this node, got {folder!r}; start the SuperNode with "
            f"""--node-config 'partition-id={client} state="/path/to/folder"'"""
        )
    return InFolder(Path(folder), client)


class InContext:
    """In Flower's `context.state`."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def about(self) -> About:
        about = self.context.state.config_records.get(ABOUT)
        if about is None:
            return About()
        return About(str(about["lineage"]), int(about["version"]))  # type: ignore[arg-type]

    def load(self) -> ClientState | None:
        arrays = self.context.state.array_records.get(VECTORS)
        if arrays is None:
            return None
        return ClientState(*self.about(), {name: array.numpy() for name, array in arrays.items()})

    def save(self, kept: ClientState) -> None:
        about = ConfigRecord({"lineage": kept.lineage, "version": kept.version})
        arrays = ArrayRecord({name: Array(vector) for name, vector in kept.vectors.items()})
        self.context.state = RecordDict({ABOUT: about, VECTORS: arrays})


class InFolder:
    """A safetensors file a client, replaced as a whole; its metadata say what it is."""

    def __init__(self, folder: Path, client: int) -> None:
        self.client = client
        self.path = folder / f"client-{client}.safetensors"

    def about(self) -> About:
        found = self._read(with_vectors=False)
        return About() if found is None else About(found.lineage, found.version)

    def load(self) -> ClientState | None:
        return self._read(with_vectors=True)

    def save(self, kept: ClientState) -> None:
        from fetchsgd.runs.files import write_atomically

        about = {
            "format": FORMAT, "client": str(self.client), "lineage": kept.lineage,
            "version": str(kept.version), "checksum": str(_checksum(kept, self.client)),
        }  # fmt: skip
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create {self.path.parent}: {error.strerror}") from error
        write_atomically(self.path, save(kept.vectors, about))

    def _read(self, with_vectors: bool) -> ClientState | None:
        """None where nothing is, and, with a word in the log, where something else is."""
        try:
            return read_file(self.path, self.client, with_vectors)
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            log.warning("what client %d held is lost: %s: %s", self.client, self.path, error)
            return None


def read_file(path: Path, client: int, with_vectors: bool) -> ClientState:
    """What `InFolder` has saved, or an error."""
    with safe_open(path, "np") as file:
        about = file.metadata() or {}
        if about.get("format") not in (FORMAT, OLDER) or about.get("client") != str(client):
            raise ValueError("written by another program, or for another client")
        kept = ClientState(about["lineage"], int(about["version"]))
        if kept.version < 0:
            raise ValueError("a version below 0")
        if not with_vectors:
            return kept
        for name in file.keys():  # noqa: SIM118
            kept.vectors[name] = file.get_tensor(name)
    found = _checksum(kept, client if about["format"] == FORMAT else None)
    if found != int(about["checksum"]):
        raise ValueError("the checksum is wrong")
    return kept


def _checksum(kept: ClientState, client: int | None) -> int:
    """Of all that was kept; without a client, as older files have it, of the vectors alone."""
    found = 0
    if client is not None:
        found = zlib.crc32(f"{client} {kept.lineage} {kept.version}".encode())
    for name in sorted(kept.vectors):
        vector = np.ascontiguousarray(kept.vectors[name])
        if client is not None:
            found = zlib.crc32(f"{name} {vector.dtype.str} {vector.shape}".encode(), found)
        found = zlib.crc32(vector.data, found)
    return found
