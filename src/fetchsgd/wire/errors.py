"""What can be wrong with a message."""

from __future__ import annotations

from typing import Literal


class WireError(ValueError):
    """A message that cannot be read, with a sentence that says why."""


class MismatchError(WireError):
    """A message that can be read, but is not the one that was expected."""

    def __init__(self, reason: Literal["shape", "seed", "round"], sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
