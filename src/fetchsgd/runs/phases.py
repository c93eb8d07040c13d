"""Where a run's time goes: seconds of each phase since the first round, in the lines of metrics.

    waiting    nothing to do until clients reply (federations)
    clients    lines 4 to 10 of Algorithm 1: ask, compute, read, judge, merge
    server     lines 11 to 15: the method's step and the grid's
    recording  evaluation, checkpoint, metrics

They are the host's seconds: what a GPU is asked for counts where the host waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from fetchsgd.formatting import format_duration

PREFIX = "seconds/"
NAMES = ("waiting", "clients", "server", "recording")
Given = ParamSpec("Given")
Found = TypeVar("Found")


class Phases:
    """Adds up seconds. A phase within another counts for itself alone."""

    def __init__(self, line: Mapping[str, Any] | None = None) -> None:
        """Continue from a line."""
        before = line or {}
        self.seconds = {name: float(before.get(PREFIX + name) or 0) for name in NAMES}
        self._inner = 0.0  # seconds of phases within the one that is open

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began, outer = time.perf_counter(), self._inner
        self._inner = 0.0
        try:
            yield
        finally:
            took = time.perf_counter() - began
            self.seconds[name] += took - self._inner
            self._inner = outer + took

    def timed(self, name: str, work: Callable[Given, Found]) -> Callable[Given, Found]:
        """The same function, in that phase."""

        def measured(*args: Given.args, **kwargs: Given.kwargs) -> Found:
            with self.phase(name):
                return work(*args, **kwargs)

        return measured

    def rounds(self, rounds: Iterator[Found]) -> Iterator[Found]:
        """The same rounds: what they take is the server's, and what their user does, recording."""
        while True:
            with self.phase("server"):
                found = next(rounds, None)
            if found is None:
                return
            with self.phase("recording"):
                yield found

    def __str__(self) -> str:
        """Such as "waiting 8.1 s, clients 2 s"."""
        told = [f"{name} {format_duration(took)}" for name, took in self.seconds.items() if took]
        return ", ".join(told)

    def line(self) -> dict[str, float]:
        return {PREFIX + name: seconds for name, seconds in self.seconds.items() if seconds}
