"""Which clients are connected, and which version of the model each says that it holds.

A node that appears is asked who it is. With a directory of clients' keys it must prove it, and one
that cannot takes nobody's place (proofs.py); without, it is believed. What it says of its version
may be a lie: a client that claims another than it holds has to ask for its update again, and harms
nobody else.
"""

from __future__ import annotations

import logging

from flwr.app import RecordDict

from fetchsgd.exchange.messages import Answer, Content, Greeting, Hello, ResendRequest
from fetchsgd.exchange.rejections import RejectedError
from fetchsgd.flower.events import Events
from fetchsgd.flower.identities import Directory
from fetchsgd.flower.membership import Membership
from fetchsgd.flower.proofs import check_proof, make_challenge
from fetchsgd.flower.protocol import from_records
from fetchsgd.flower.transport import Reply, Sent, Transport

log = logging.getLogger("flwr.fetchsgd")
LOOK_FOR_NODES = 2.0  # seconds between looks
LEAST_LIFETIME = 60.0  # seconds for an introduction: a node starts its first process
REFUSED_FOR = 60.0  # seconds until a node that was refused may try again
MOST_NAMED = 10  # clients in a line of the log


class Introductions:
    """Greets nodes, and keeps what they say."""

    def __init__(
        self,
        num_clients: int,
        lineage: str,
        transport: Transport,
        events: Events,
        directory: Directory | None = None,
    ) -> None:
        self.lineage, self.transport, self.events = lineage, transport, events
        self.directory = directory
        self.members = Membership(num_clients)
        self.refused: dict[int, float] = {}  # by node, when it may try again
        self.claimed_versions: dict[int, int] = {}  # by client, until the next message to it
        self.looked = float("-inf")
        _say_who_is_known(num_clients, directory)

    def look_for_nodes(self, round: int, lifetime: float) -> None:
        """Greet those that are new, every few seconds."""
        now = self.transport.clock()
        if now < self.looked + LOOK_FOR_NODES:
            return
        self.looked = now
        for node in [node for node, until in self.refused.items() if until <= now]:
            del self.refused[node]
            self.members.forget(node)  # with a registered key it is the same node after a restart
        new, left = self.members.seen(self.transport.nodes())
        for node in new:
            challenge = b"" if self.directory is None else make_challenge()
            greeting = Greeting(self.lineage, challenge)
            self.transport.greet(node, greeting, round, max(lifetime, LEAST_LIFETIME))
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
            self.events.reject(sent.client, "unreadable")
            log.warning(
                "client %d is rejected in round %d (unreadable): %s",
                sent.client, sent.round, reply.unreadable,
            )  # fmt: skip
        elif reply.records is not None:
            self.events.count("late")
            log.info("client %d replies to round %d: late, dropped", sent.client, sent.round)
            self.learn_from(reply.records, sent.client, sent)
        return None

    def learn_from(self, records: RecordDict, client: int, sent: Sent) -> None:
        """What a late or rejected client holds by now, so that its next update begins there."""
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
            self.refused[node] = self.transport.clock() + REFUSED_FOR
            told = "is refused" if error.reason == "identity" else "does not say who it is"
            log.warning("node %d %s: %s", node, told, error)
            return None
        self.events.count("joined")
        if rivals := self.members.rivals(client):
            self.events.count("same_client")
            log.warning(
                "node %d says that it is client %d, as node %d does, and is believed from now on"
                "%s; unless it is the same node, restarted, two nodes have the same partition-id%s",
                node, client, rivals[-1], *self._why_believed,
            )  # fmt: skip
        self.claimed_versions[client] = held
        log.info("client %d has joined and holds version %d", client, held)
        return client

    def _introduced(self, reply: Reply) -> tuple[int, int]:
        """The client that the node is, and the version that it holds; or RejectedError."""
        if reply.records is None:
            raise RejectedError("unreadable", reply.unreadable)
        hello, sent = from_records(reply.records, Hello), reply.sent
        if not self.members.can_be(hello.client):
            raise RejectedError(
                "header",
                f"it says that it is client {hello.client}, but clients are 0 to "
                f"{self.members.num_clients - 1}",
            )
        if self.directory is not None:
            assert sent.greeting is not None
            check_proof(hello, sent.greeting, sent.node, self.directory)
        self.members.introduce(sent.node, hello.client)
        is_possible = hello.lineage == self.lineage and hello.held <= sent.round
        return hello.client, hello.held if is_possible else 0

    @property
    def _why_believed(self) -> tuple[str, str]:
        if self.directory is None:
            return ", though nothing proves it", ""
        return ", as it has that client's key", " and key"


def _say_who_is_known(num_clients: int, directory: Directory | None) -> None:
    if directory is None:
        log.info(
            "federation.directory is not given: nodes are believed which client they are, and "
            "nothing proves it"
        )
    elif unknown := [client for client in range(num_clients) if client not in directory]:
        named = ", ".join(map(str, unknown[:MOST_NAMED]))
        log.warning(
            "federation.directory has no keys of %d of the %d clients, who cannot join: %s%s; make "
            "them by python -m fetchsgd.flower.keys --clients %d",
            len(unknown), num_clients, named, " ..." if len(unknown) > MOST_NAMED else "",
            num_clients,
        )  # fmt: skip
