"""Random bits for noise: a secret key, and a stream for each purpose, round and client.

All noise of a run follows from one key of 256 bits by SHAKE-256, which nobody can tell from random
bits without the key. So a run that goes on after a crash draws the same noise for the same round:
to draw another would spend privacy twice. Whoever has the key can take the noise out again.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 32


@dataclass(frozen=True)
class Source:
    """Streams of random words under a key."""

    key: bytes

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, got {len(self.key)}")

    def __repr__(self) -> str:
        return "Source(...)"  # keys do not belong into logs

    @classmethod
    def secret(cls) -> Source:
        """With a key from the operating system, which nobody else knows."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: int) -> Source:
        """With a key that anybody can compute: for tests, and experiments on public data."""
        return cls(hashlib.sha256(b"fetchsgd noise by seed %d" % seed).digest())

    def words(self, count: int, *labels: int) -> NDArray[np.uint64]:
        """The first words of the stream of these labels, such as a round and a client."""
        about = b"".join(label.to_bytes(8, "little", signed=True) for label in labels)
        head = self.key + len(labels).to_bytes(1, "little") + about
        return np.frombuffer(hashlib.shake_256(head).digest(8 * count), dtype="<u8")
