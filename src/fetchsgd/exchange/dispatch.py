"""What the server sends clients in a round, and what it believes that they hold afterwards.

A client that was away is sent what it has missed in one message; one that nobody has seen before
gets it from version 0, which every client can make by itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fetchsgd.exchange.agreement import checksum
from fetchsgd.exchange.messages import Work
from fetchsgd.server.rounds import Training
from fetchsgd.wire import encode

MAX_ENCODED = 8  # updates kept encoded, by the version that they begin at


class Dispatch:
    """The requests of one round."""

    def __init__(self, training: Training, rate: float, digest: str, lineage: str) -> None:
        self.training, self.round, self.rate = training, training.round, rate
        self.digest, self.lineage = digest, lineage
        self.checksum = checksum(training.weights)
        self.size = 0.0 if training.size is None else float(training.size)
        self.held_before: dict[int, int] = {}
        self.updates: dict[int, bytes] = {}

    def work(self, client: int) -> Work:
        """The update from what the client is believed to hold, and what to do with it."""
        ledger, place = self.training.ledger, self.training.place
        held = ledger.held[client]
        self.held_before.setdefault(client, held)
        if held not in self.updates:
            if len(self.updates) >= MAX_ENCODED:
                self.updates.clear()
            self.updates[held] = encode(ledger.message(client, self.round, place))
        ledger.download(np.array([client]), self.round, place)  # line 6
        return Work(
            self.digest, self.lineage, self.round, client, self.rate, self.checksum,
            ledger.merged[client], self.size, self.updates[held],
        )  # fmt: skip

    def correct(self, client: int, lineage: str, held: int) -> int:
        """The client says that it holds this version of that run: what is believed from now on."""
        known = lineage == self.lineage and held <= self.round  # later ones do not exist yet
        held = held if known else 0
        self.training.ledger.held[client] = held
        self.held_before[client] = held
        return held

    def believe(self, clients: Iterable[int]) -> None:
        """Whose reply was merged holds the version that the round began with."""
        for client in clients:
            self.held_before.pop(client, None)

    def close(self) -> None:
        """Who was asked and has not replied is not believed to hold the new version."""
        for client, held in self.held_before.items():
            self.training.ledger.held[client] = held
