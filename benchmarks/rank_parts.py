"""Where the time of a round goes, for ranks.py: the clock is read around a few functions.

pass        forward and backward, of this process's clients
messages    what is made of gradients: a sketch, a vector, or each client's own message
sum         over all processes, with the time in which one waits for the others
step        the method's: decode, momentum, error, top-k
ledger      who holds which version, and bytes
rest        cohort, examples, new weights, all else
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from fetchsgd.clients.trainer import Trainer
from fetchsgd.ranks import Ranks
from fetchsgd.server.ledger import Ledger

WATCHED = {
    "pass": (Trainer, ("mean_gradient", "client_vectors")),
    "sum": (Ranks, ("sum", "sum_both", "most")),
    "ledger": (Ledger, ("download", "upload", "update")),
}
NAMES = ("pass", "messages", "sum", "step", "ledger")


class Parts:
    """Adds up seconds; what is called within another part counts for itself alone."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(NAMES, 0.0)
        self._inner = [0.0]
        self._watched: set[tuple[type, str]] = set()
        for part, (owner, names) in WATCHED.items():
            for name in names:
                self._wrap(owner, name, part)

    def watch(self, method: Any) -> None:
        """A method's step, and what clients send by it."""
        self._wrap(type(method), "step", "step")
        for name in ("compress", "merge"):
            if hasattr(method.message, name):
                self._wrap(type(method.message), name, "messages")

    def _wrap(self, owner: type, name: str, part: str) -> None:
        if (owner, name) in self._watched:
            return
        self._watched.add((owner, name))
        really = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            self._inner.append(0.0)
            try:
                return really(*arguments, **named)
            finally:
                took = time.perf_counter() - began
                self._seconds[part] += took - self._inner.pop()
                self._inner[-1] += took

        setattr(owner, name, timed)

    def taken(self) -> dict[str, float]:
        """Seconds since the last call."""
        taken, self._seconds = self._seconds, dict.fromkeys(NAMES, 0.0)
        return taken

    @staticmethod
    def medians(all_taken: list[dict[str, float]], rounds: int, whole: float) -> dict[str, float]:
        """Milliseconds of a round; `whole` is how many seconds it takes in all."""
        found = {
            part: statistics.median(taken[part] for taken in all_taken) / rounds for part in NAMES
        }
        found["rest"] = whole - sum(found.values())
        return {part: round(1e3 * seconds, 2) for part, seconds in found.items()}
