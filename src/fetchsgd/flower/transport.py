"""Messages to nodes and their replies, over Flower's grid: sent and received one by one.

So the payloads of a cohort are never in memory all at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fetchsgd.exchange.messages import SecureCall, SecureWork, Work
from fetchsgd.flower.events import Events
from fetchsgd.flower.protocol import num_payload_bytes, to_records
from fetchsgd.flower.pulling import make_puller

MAX_REPLY_BYTES = 1 << 30  # unless a round says less


@dataclass(frozen=True)
class Sent:
    """A message that is out."""

    node: int
    client: int | None  # None where the node is asked who it is
    round: int
    expires: float
    part: object = None  # of the round, where it has several


@dataclass(frozen=True)
class Reply:
    """What came back: records, why there are none, or why it cannot be read."""

    sent: Sent
    records: RecordDict | None
    failure: str = ""
    unreadable: str = ""


class Transport:
    """Keeps the ids of messages that are out, until a reply comes or they expire."""

    def __init__(
        self, grid: Grid, events: Events, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.grid, self.events, self.clock = grid, events, clock
        self.puller = make_puller(grid)
        self.max_reply_bytes = MAX_REPLY_BYTES
        self.out: dict[str, Sent] = {}  # by message id

    def nodes(self) -> set[int]:
        return set(self.grid.get_node_ids())

    def greet(self, node: int, round: int, lifetime: float) -> None:
        """Ask a node who it is."""
        self._push(RecordDict(), MessageType.QUERY, node, None, round, lifetime)

    def send(
        self, node: int, work: Work | SecureCall | SecureWork, lifetime: float, part: object = None
    ) -> None:
        """Work for a client. After its lifetime Flower neither delivers it nor takes a reply."""
        records = to_records(work)
        self._push(records, MessageType.TRAIN, node, work.client, work.round, lifetime, part)
        self.events.count("asked")
        self.events.count("sent_bytes", num_payload_bytes(records))

    def _push(
        self,
        records: RecordDict,
        kind: str,
        node: int,
        client: int | None,
        round: int,
        lifetime: float,
        part: object = None,
    ) -> None:
        message = Message(records, node, kind, ttl=lifetime, group_id=str(round))
        for name in self.grid.push_messages([message]):
            if name:  # Flower may have refused it
                self.out[name] = Sent(node, client, round, self.clock() + lifetime, part)

    def replies(self) -> Iterator[Reply]:
        """What has come in since the last time, one after the other."""
        for pulled in self.puller.pull(list(self.out), self.max_reply_bytes):
            sent = self.out.pop(pulled.message_id)
            self.events.count("received_bytes", pulled.payload_bytes)
            yield Reply(sent, pulled.records, pulled.failure, pulled.unreadable)
        now = self.clock()
        for name in [name for name, sent in self.out.items() if sent.expires < now]:
            yield Reply(self.out.pop(name), None, "no reply in its lifetime")

    def busy(self) -> set[tuple[int, int | None]]:
        """Nodes and clients with work that they have not replied to."""
        return {(sent.node, sent.client) for sent in self.out.values()}
