"""Who is rejected again and again is asked less and less, and the log says so.

Two rejections may be an accident. From the third in a row on, a client is left out for 1, 2, 4 and
more rounds, at most 64, and has another chance after each: an accepted reply clears its record.
Where a round would have too few replies without it, it is asked all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fetchsgd.flower.events import Events

log = logging.getLogger("flwr.fetchsgd")
FORGIVEN = 2  # rejections in a row
MOST = 64  # rounds


class Patience:
    """Rejections in a row, by client."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.in_a_row: dict[int, int] = {}
        self.until: dict[int, int] = {}  # the round in which it is asked again

    def may_ask(self, client: int, round: int) -> bool:
        return round >= self.until.get(client, 0)

    def rejected(self, client: int, round: int) -> None:
        """Once more."""
        times = self.in_a_row[client] = self.in_a_row.get(client, 0) + 1
        if times <= FORGIVEN:
            return
        rounds = min(1 << (times - FORGIVEN - 1), MOST)
        self.until[client] = round + 1 + rounds
        self.events.count("left_out")
        log.warning(
            "client %d has been rejected %d times in a row and is not asked for %d %s, up to "
            "round %d",
            client, times, rounds, "round" if rounds == 1 else "rounds", round + 1 + rounds,
        )  # fmt: skip

    def accepted(self, clients: Iterable[int]) -> None:
        for client in clients:
            self.in_a_row.pop(client, None)
            self.until.pop(client, None)

    @property
    def records(self) -> list[list[int]]:
        """Client, rejections in a row, and the round in which it is asked again."""
        found = sorted(self.in_a_row.items())
        return [[client, times, self.until.get(client, 0)] for client, times in found]

    def restore(self, records: Iterable[list[int]]) -> None:
        """Those of an earlier server."""
        for client, times, until in records:
            self.in_a_row[client], self.until[client] = times, until
