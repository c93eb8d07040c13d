"""The one exception of reading a message."""

from __future__ import annotations


class WireError(ValueError):
    """A message that cannot be read, with a sentence that says why."""


class MismatchError(WireError):
    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
