"""Messages to nodes and their replies, over Flower's grid: sent and received one by one.

So the payloads of a cohort are never in memory all at once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fetchsgd.exchange.messages import Greeting, SecureCall, SecureWork, Work
from fetchsgd.flower.events import Events
from fetchsgd.flower.protocol import HEADER, num_payload_bytes, to_records
from fetchsgd.flower.pulling import make_puller

MAX_REPLY_BYTES = 1 << 30  # unless a round says less
NONCE_BYTES = 16


@dataclass(frozen=True)
class Sent:
    """A message that is out."""

    node: int
    client: int | None  # None where the node is asked who it is
    round: int
    expires: float
    greeting: Greeting | None = None  # what that node was asked
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

    def greet(self, node: int, greeting: Greeting, round: int, lifetime: float) -> None:
        """Ask a node who it is."""
        sent = Sent(node, None, round, self.clock() + lifetime, greeting)
        self._push(to_records(greeting), MessageType.QUERY, sent, lifetime)

    def send(
        self, node: int, work: Work | SecureCall | SecureWork, lifetime: float, part: object = None
    ) -> None:
        """Work for a client. After its lifetime Flower neither delivers it nor takes a reply."""
        records = to_records(work)
        sent = Sent(node, work.client, work.round, self.clock() + lifetime, part=part)
        self._push(records, MessageType.TRAIN, sent, lifetime)
        self.events.count("asked")
        self.events.count("sent_bytes", num_payload_bytes(records))

    def _push(self, records: RecordDict, kind: str, sent: Sent, lifetime: float) -> None:
        # A message's id follows from what is in it, and Flower takes a reply from whichever
        # registered node knows the id: so nobody but the addressee must be able to work it out.
        records.config_records[HEADER]["nonce"] = secrets.token_bytes(NONCE_BYTES)
        message = Message(records, sent.node, kind, ttl=lifetime, group_id=str(sent.round))
        for name in self.grid.push_messages([message]):
            if name:  # Flower may have refused it
                self.out[name] = sent

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
