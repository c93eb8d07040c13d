"""What server and client tell each other, as plain values; protocol.py puts them into messages.

    server -> client   Greeting       who are you?
                       Work           the update to the version of a round, and what to do with it
    client -> server   Answer         what the method sends
                       ResendRequest  the update did not fit: this is what I hold
                       Hello          who I am, and what I hold

With secure aggregation a round has five exchanges, of which the third carries the model:

    server -> client   SecureCall     a message of fetchsgd.secure
                       SecureWork     the delivery, with what Work has
    client -> server   SecureReply    the answer of fetchsgd.secure; or ResendRequest

Versions are counted as in the ledger: round t starts from version t.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar


class Content:
    """What one of them tells the other."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class Work(Content):
    """Bring your weights to version `round` with the payload, a SparseUpdate, and train."""

    kind: ClassVar[str] = "work"
    digest: str  # of settings and initial weights
    lineage: str  # of the run: version numbers of another one mean something else
    round: int
    client: int
    rate: float  # learning rate
    checksum: int  # of the weights of that version
    merged: int  # the version that the client's last reply went into; 0 if none ever did
    size: float  # of the numbers that clients have sent lately; 0 if nobody knows
    payload: bytes


@dataclass(frozen=True)
class Answer(Content):
    """What a client sends (Algorithm 1, line 8)."""

    kind: ClassVar[str] = "answer"
    digest: str
    lineage: str
    round: int
    client: int
    examples: int
    loss: float  # before the round
    payload: bytes


@dataclass(frozen=True)
class ResendRequest(Content):
    """The update does not fit what the client holds: it wants one that begins at `held`."""

    kind: ClassVar[str] = "asks"
    digest: str
    lineage: str
    round: int
    client: int
    held: int


@dataclass(frozen=True)
class Greeting(Content):
    """Who are you? A challenge is fresh and random; without one no proof is asked for."""

    kind: ClassVar[str] = "greeting"
    lineage: str  # of the server's run
    challenge: bytes = b""


@dataclass(frozen=True)
class Hello(Content):
    """A node introduces itself; `held` is 0 where it holds nothing."""

    kind: ClassVar[str] = "hello"
    lineage: str  # of what it holds
    client: int
    held: int
    signature: bytes = b""  # by the client's key, where the server has challenged it


@dataclass(frozen=True)
class SecureCall(Content):
    """A message of secure aggregation; its header says of which phase."""

    kind: ClassVar[str] = "secure"
    lineage: str
    round: int
    client: int
    payload: bytes


@dataclass(frozen=True)
class SecureWork(Content):
    """A delivery, and the work whose result is masked: the payload begins with the delivery."""

    kind: ClassVar[str] = "secure-work"
    digest: str
    lineage: str
    round: int
    client: int
    rate: float
    checksum: int
    merged: int
    size: float
    delivery: int  # bytes of the payload
    payload: bytes

    @classmethod
    def of(cls, work: Work, delivery: bytes) -> SecureWork:
        shared = {field.name: getattr(work, field.name) for field in fields(work)}
        return cls(**shared | {"delivery": len(delivery), "payload": delivery + work.payload})

    def parts(self) -> tuple[Work, bytes]:
        shared = {field.name: getattr(self, field.name) for field in fields(Work)}
        delivery, update = self.payload[: self.delivery], self.payload[self.delivery :]
        return Work(**shared | {"payload": update}), delivery


@dataclass(frozen=True)
class SecureReply(Content):
    """A client's answer in a phase of secure aggregation."""

    kind: ClassVar[str] = "secure-answer"
    lineage: str
    round: int
    client: int
    payload: bytes
