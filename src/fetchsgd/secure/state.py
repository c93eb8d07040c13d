"""What a client keeps between the messages of a round."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from fetchsgd.secure.errors import RefusedError
from fetchsgd.secure.frames import read_header
from fetchsgd.secure.messages import read_invitation
from fetchsgd.secure.secret import SECRET_BYTES, Secret
from fetchsgd.secure.terms import Terms

_KEPT = ("invitation", "roster", "delivery", "survivors", "request")


@dataclass(frozen=True)
class ClientState:
    """A client's seed for the round, and what the server has sent so far."""

    seed: Secret
    invitation: bytes
    roster: bytes = b""
    delivery: bytes = b""
    survivors: bytes = b""
    request: bytes = b""

    def to_bytes(self) -> bytes:
        """With the seed: as secret as the client's data."""
        parts = [getattr(self, name) for name in _KEPT]
        return self.seed.reveal() + struct.pack("<5Q", *map(len, parts)) + b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> ClientState:
        head = SECRET_BYTES + 40
        if len(data) < head:
            raise ValueError("the state of a client is cut off")
        lengths = struct.unpack_from("<5Q", data, SECRET_BYTES)
        if len(data) != head + sum(lengths):
            raise ValueError("the state of a client has a wrong length")
        parts, at = [], head
        for length in lengths:
            parts.append(data[at : at + length])
            at += length
        return cls(Secret(data[:SECRET_BYTES]), *parts)

    def __repr__(self) -> str:
        return f"ClientState({', '.join(name for name in _KEPT if getattr(self, name))})"


def begin(state: ClientState, name: str) -> Terms:
    """The terms, if the message of this name is the next one."""
    place = _KEPT.index(name)
    missing = [earlier for earlier in _KEPT[:place] if not getattr(state, earlier)]
    if missing:
        raise RefusedError(f"{name} has come before {missing[0]}")
    if getattr(state, name):
        raise RefusedError(f"{name} has come already; nothing is answered twice")
    _, number, _ = read_header(state.invitation)
    return read_invitation(state.invitation, number)
