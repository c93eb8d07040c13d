"""What sums have cost the clients, where each adds noise (`privacy.mode = "distributed"`).

A sum that the server may have seen is spent, whether or not the round was applied: the mean may
have been refused, or the server killed. So it is not rounds that count, but in how many sums each
client has been, written down before the last requests leave. Epsilon is that of the client with the
most. Who has spent the budget is not invited again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from fetchsgd.errors import UserError
from fetchsgd.privacy import renyi
from fetchsgd.runs.checkpoint import Tensors
from fetchsgd.runs.files import write_atomically
from fetchsgd.runs.folder import Line
from fetchsgd.runs.private_modes import Distributed

FILE = "revealed.json"
MOST_TIMES = 1 << 20


class SpentError(Exception):
    """So many clients have spent their budget that no round can be done."""


class Account:
    """Beside a run (runs.recorder.Beside). The file is ahead of the checkpoints, never behind."""

    def __init__(self, private: Distributed, folder: Path) -> None:
        self.private, self.path = private, folder / FILE
        self.times: Counter[int] = Counter()
        if self.path.exists():
            self.times.update(_read(self.path))
        self.most = self._most()

    def _most(self) -> int:
        """Sums that a client may be in."""
        budget = self.private.privacy.epsilon
        if not budget:
            return MOST_TIMES
        low, high = 0, 1
        while high < MOST_TIMES and self._epsilon(high) <= budget:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._epsilon(middle) <= budget else (low, middle)
        return low

    def _epsilon(self, times: int) -> float:
        if not times:
            return 0.0
        return renyi.epsilon(self.private.accountant.curve, times, self.private.privacy.delta)

    @property
    def epsilon(self) -> float:
        return self._epsilon(max(self.times.values(), default=0))

    def may_take_part(self, client: int) -> bool:
        return self.times[client] < self.most

    def reveal(self, clients: Iterable[int]) -> None:
        """The server is about to learn a sum of these."""
        self.times.update(clients)
        times = {str(client): count for client, count in sorted(self.times.items())}
        write_atomically(self.path, json.dumps({"sums": times}).encode())

    @property
    def end(self) -> str:
        """Why a run ends before its last round."""
        spent = sum(count >= self.most for count in self.times.values())
        privacy = self.private.privacy
        return (
            f"stopped: {spent:,} clients have been in {self.most:,} sums each, and one more would "
            f"spend an epsilon of {self._epsilon(self.most + 1):.4g}; the budget is "
            f"{privacy.epsilon:g} at delta {privacy.delta:g}"
        )

    def line(self) -> Line:
        return self.private.line() | {"epsilon": self.epsilon}

    def result(self) -> Line:
        found = self.private.result()
        most = max(self.times.values(), default=0)
        return found | {"epsilon": self.epsilon, "privacy": found["privacy"] | {"sums": most}}

    def tensors(self) -> Tensors:
        return self.private.tensors()

    def restore(self, tensors: Tensors) -> None:
        self.private.restore(tensors)


def _read(path: Path) -> dict[int, int]:
    try:
        sums = json.loads(path.read_text())["sums"]
        return {int(client): int(count) for client, count in sums.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be read: {error}; without it nobody knows what the run has spent"
        ) from error
