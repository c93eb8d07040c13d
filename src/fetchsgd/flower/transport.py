"""Messages to nodes and their replies, over Flower's grid: pushed one by one, pulled in handfuls.

So at most a handful of payloads is in memory at once, however large the cohort.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fetchsgd.flower.events import Events
from fetchsgd.flower.messages import Work
from fetchsgd.flower.protocol import num_payload_bytes, to_records

log = logging.getLogger("flwr.fetchsgd")
HANDFUL = 8
MOST_TOLD = 200  # characters of what a client says


@dataclass(frozen=True)
class Sent:
    """A message that is out."""

    node: int
    client: int | None  # None where the node is asked who it is
    round: int
    expires: float


@dataclass(frozen=True)
class Reply:
    """What came back: records, or why there are none."""

    sent: Sent
    records: RecordDict | None
    failure: str = ""


class Conversation:
    """Keeps the ids of messages that are out, until a reply comes or they expire."""

    def __init__(
        self, grid: Grid, events: Events, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.grid, self.events, self.clock = grid, events, clock
        self.out: dict[str, Sent] = {}

    def nodes(self) -> set[int]:
        return set(self.grid.get_node_ids())

    def greet(self, node: int, round: int, lifetime: float) -> None:
        """Ask a node who it is."""
        self._push(RecordDict(), MessageType.QUERY, node, None, round, lifetime)

    def send(self, node: int, work: Work, lifetime: float) -> None:
        """Work for a client. After its lifetime Flower neither delivers it nor takes a reply."""
        records = to_records(work)
        self._push(records, MessageType.TRAIN, node, work.client, work.round, lifetime)
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
    ) -> None:
        message = Message(records, node, kind, ttl=lifetime, group_id=str(round))
        for name in self.grid.push_messages([message]):
            if name:  # Flower may have refused it
                self.out[name] = Sent(node, client, round, self.clock() + lifetime)

    def replies(self) -> Iterator[Reply]:
        """What has come in since the last time."""
        names = list(self.out)
        for start in range(0, len(names), HANDFUL):
            for message in self._pull(names[start : start + HANDFUL]):
                sent = self.out.pop(message.metadata.reply_to_message_id, None)
                if sent is None:
                    continue
                if message.has_error():
                    yield Reply(sent, None, _told(message))
                else:
                    self.events.count("received_bytes", num_payload_bytes(message.content))
                    yield Reply(sent, message.content)
        now = self.clock()
        for name in [name for name, sent in self.out.items() if sent.expires < now]:
            yield Reply(self.out.pop(name), None, "no reply in its lifetime")

    def _pull(self, names: list[str]) -> list[Message]:
        """Flower itself takes messages apart, and a hostile one makes it stumble."""
        try:
            return list(self.grid.pull_messages(names))
        except httpx.HTTPError:
            raise  # the SuperLink is gone
        except Exception as error:
            log.warning("a reply cannot be read, and is left alone: %s", repr(error)[:MOST_TOLD])
            return []

    def busy(self) -> set[tuple[int, int | None]]:
        """Nodes and clients with work that they have not replied to."""
        return {(sent.node, sent.client) for sent in self.out.values()}


def _told(message: Message) -> str:
    """Flower's words, or those of a client: not to be trusted with the log's layout."""
    return repr(message.error.reason)[:MOST_TOLD]
