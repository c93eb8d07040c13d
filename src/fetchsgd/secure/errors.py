"""The two ways in which secure aggregation says no."""

from __future__ import annotations


class RefusedError(ValueError):
    """A message that is not accepted, with a sentence that says why; nothing has changed by it."""


class TooFewError(RuntimeError):
    """A round that cannot be finished: it is dropped, and nothing of it is known or counts."""
