"""Bytes that must not be seen: in no repr, no log and no pickle, and compared in constant time."""

from __future__ import annotations

import hmac
import os
from typing import NoReturn

SECRET_BYTES = 32


class Secret:
    """32 secret bytes; `reveal` is the only way to them."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        if len(value) != SECRET_BYTES:
            raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(value)}")
        self._value = bytes(value)

    @classmethod
    def random(cls) -> Secret:
        """From the operating system's generator."""
        return cls(os.urandom(SECRET_BYTES))

    def reveal(self) -> bytes:
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    __hash__ = None  # type: ignore[assignment]  # a dictionary would compare in its own way

    def __repr__(self) -> str:
        return f"Secret({SECRET_BYTES} bytes)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")
