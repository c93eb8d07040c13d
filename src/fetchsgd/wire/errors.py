"""The one exception of reading a message."""

from __future__ import annotations


class WireError(ValueError):
    """A message that cannot be read, with a sentence that says why."""
