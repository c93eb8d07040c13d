"""Which clients are connected, and which version of the model each says that it holds.

A node that appears is asked who it is. What it says about itself may be a lie: a client that claims
another version than it holds has to ask for its update again, and harms nobody else.
"""

from __future__ import annotations

import logging

from flwr.app import RecordDict

from fetchsgd.exchange.messages import Answer, Content, Hello, ResendRequest
from fetchsgd.exchange.rejections import RejectedError
from fetchsgd.flower.events import Events
from fetchsgd.flower.membership import Membership
from fetchsgd.flower.protocol import from_records
from fetchsgd.flower.transport import Reply, Sent, Transport

log = logging.getLogger("flwr.fetchsgd")
LOOK_FOR_NODES = 2.0  # seconds between looks
LEAST_LIFETIME = 60.0  # seconds for an introduction: a node starts its first process


class Introductions:
    """Greets nodes, and keeps what they say."""

    def __init__(
        self, num_clients: int, lineage: str, transport: Transport, events: Events
    ) -> None:
        self.lineage, self.transport, self.events = lineage, transport, events
        self.members = Membership(num_clients)
        self.claimed_versions: dict[int, int] = {}  # by client, until the next message to it
        self.looked = float("-inf")

    def look_for_nodes(self, round: int, lifetime: float) -> None:
        """Greet those that are new, every few seconds."""
        now = self.transport.clock()
        if now < self.looked + LOOK_FOR_NODES:
            return
        self.looked = now
        new, left = self.members.seen(self.transport.nodes())
        for node in new:
            self.transport.greet(node, round, max(lifetime, LEAST_LIFETIME))
        for client in left:
            self.events.count("left")
            self.claimed_versions.pop(client, None)
            log.info("client %d has left", client)

    def take(self, reply: Reply) -> int | None:
        """A reply that belongs to no open round: late, or of a client that joins: its number."""
        sent = reply.sent
        if sent.client is None:
            return self._welcome(reply)
        if reply.unreadable:
            self.events.count("rejected_unreadable")
            log.warning(
                "client %d is rejected in round %d (unreadable): %s",
                sent.client, sent.round, reply.unreadable,
            )  # fmt: skip
        elif reply.records is not None:
            self.events.count("late")
            log.info("client %d replies to round %d: late, dropped", sent.client, sent.round)
            self._learn_from(reply.records, sent.client, sent)
        return None

    def _learn_from(self, records: RecordDict, client: int, sent: Sent) -> None:
        """What a late client holds by now, so that its next update begins there."""
        try:
            content: Content = from_records(records, Answer, ResendRequest)
        except RejectedError:
            return
        assert isinstance(content, Answer | ResendRequest)
        is_same = content.lineage == self.lineage and content.round == sent.round
        if is_same and self.members.node_of.get(client) == sent.node:
            held = content.held if isinstance(content, ResendRequest) else sent.round
            self.claimed_versions[client] = held

    def _welcome(self, reply: Reply) -> int | None:
        node = reply.sent.node
        if reply.failure:
            self.members.forget(node)
            self.events.count("failed")
            log.warning("node %d does not say who it is: %s", node, reply.failure)
            return None
        try:
            client, held = self._introduced(reply)
        except RejectedError as error:
            self.events.count(f"rejected_{error.reason}")
            log.warning("node %d does not say who it is: %s", node, error)
            return None
        self.events.count("joined")
        if rivals := self.members.rivals(client):
            self.events.count("same_client")
            log.warning(
                "node %d says that it is client %d, as node %d does, and is believed from now on; "
                "unless it is the same node, restarted, two nodes have the same partition-id",
                node, client, rivals[-1],
            )  # fmt: skip
        self.claimed_versions[client] = held
        log.info("client %d has joined and holds version %d", client, held)
        return client

    def _introduced(self, reply: Reply) -> tuple[int, int]:
        """The client that the node is, and the version that it holds; or RejectedError."""
        if reply.records is None:
            raise RejectedError("unreadable", reply.unreadable)
        hello = from_records(reply.records, Hello)
        if not self.members.introduce(reply.sent.node, hello.client):
            raise RejectedError(
                "header",
                f"it says that it is client {hello.client}, but clients are 0 to "
                f"{self.members.num_clients - 1}",
            )
        is_possible = hello.lineage == self.lineage and hello.held <= reply.sent.round
        return hello.client, hello.held if is_possible else 0
