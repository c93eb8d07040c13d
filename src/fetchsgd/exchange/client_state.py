"""What a client keeps between two rounds: the version that it holds, and memory of its own."""

from __future__ import annotations

import io
import struct
import zipfile
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fetchsgd.exchange.rejections import RejectedError

MAGIC = b"fetchsgd.client.1"
ABOUT = "about"  # among the arrays: lineage and version


@dataclass(frozen=True)
class ClientState:
    """A version of the model, and the vectors that belong to it.

    lineage: of the server's run; version numbers of another one mean something else.
    version: which one the client holds.
    vectors: the weights or whole steps of that version, what the client remembers, and its last
        reply where it must be able to send that again.
    """

    lineage: str
    version: int
    vectors: dict[str, NDArray[Any]] = field(default_factory=dict, repr=False)

    def to_bytes(self) -> bytes:
        """To be kept in a file; `from_bytes` reads it."""
        about = np.frombuffer(struct.pack("<Q", self.version) + self.lineage.encode(), np.uint8)
        buffer = io.BytesIO()
        buffer.write(MAGIC)
        arrays: dict[str, Any] = {f"vector.{n}": v for n, v in self.vectors.items()}
        arrays[ABOUT] = about
        np.savez(buffer, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> ClientState:
        """What `to_bytes` has written; RejectedError for anything else, such as half of it."""
        if not data.startswith(MAGIC):
            raise RejectedError("undecodable", "these bytes are not the state of a client")
        try:
            with np.load(io.BytesIO(data[len(MAGIC) :]), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            about = arrays.pop(ABOUT).tobytes()
            (version,), lineage = struct.unpack_from("<Q", about), about[8:].decode()
        except (ValueError, KeyError, OSError, EOFError, struct.error, zipfile.BadZipFile) as error:
            raise RejectedError(
                "undecodable", f"the state of the client is damaged: {error}"
            ) from error
        vectors = {name.removeprefix("vector."): array for name, array in arrays.items()}
        return cls(lineage, version, vectors)
