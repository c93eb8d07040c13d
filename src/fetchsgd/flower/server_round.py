"""One round on the server: ask clients, merge replies as they come, close in time.

A round is closed as soon as enough clients have replied, when nobody is left to wait for, or at its
deadline if at least `min_replies` have come. With fewer it is asked for again, and what has come
stays. Replies to rounds that are closed are counted and dropped, but for what they say that the
client holds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import RecordDict

from fetchsgd.errors import UserError
from fetchsgd.flower.events import Events
from fetchsgd.flower.membership import Membership, how_many, order_of_asking
from fetchsgd.flower.merging import Expected, RunningMean, judge
from fetchsgd.flower.messages import Answer, Asks, Content, Hello, Work
from fetchsgd.flower.protocol import from_records
from fetchsgd.flower.rejections import RejectedError
from fetchsgd.flower.run import FederatedRun, checksum
from fetchsgd.flower.settings import FederationSettings
from fetchsgd.flower.transport import Conversation, Reply, Sent
from fetchsgd.flower.versions import update_since
from fetchsgd.server.rounds import Training
from fetchsgd.wire import encode

log = logging.getLogger("flwr.fetchsgd")
LOOK_FOR_NODES = 2.0  # seconds
LEAST_GREETING = 60.0  # seconds: a node starts its first process
MOST_RESENT = 2  # times in a round and for a client
MOST_UPDATES = 8  # kept encoded, by the version that they begin at


@dataclass(frozen=True)
class Clock:
    """Time, so that tests need not wait for it."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Collector:
    """Everything about clients that outlives a round."""

    def __init__(
        self,
        run: FederatedRun,
        settings: FederationSettings,
        lineage: str,
        talk: Conversation,
        events: Events,
        clock: Clock | None = None,
    ) -> None:
        self.run, self.settings, self.lineage = run, settings, lineage
        self.talk, self.events, self.clock = talk, events, clock or Clock()
        self.members = Membership(run.sampler.num_clients)
        self.expected = Expected(
            run.method, run.clients.upload, run.digest, lineage, 0,
            run.config.train.averaging == "examples",
            settings.max_norm, settings.clip_norm, settings.max_examples,
        )  # fmt: skip
        self.looked = float("-inf")
        self.believed: dict[int, int] = {}  # versions that clients say they hold

    @property
    def lifetime(self) -> float:
        """Of a message: long enough to see a late reply, too short to pile up."""
        return 2 * self.settings.deadline

    def wait_for_clients(self, round: int) -> None:
        """Until a whole cohort is there, or at least `min_replies` clients when time is up."""
        cohort, least = self.run.sampler.per_round, self.settings.min_replies
        end = self.clock.now() + self.settings.wait
        while len(self.members.clients) < cohort:
            self.look_for_nodes(round)
            for reply in self.talk.replies():
                self.take_up(reply)
            if self.clock.now() >= end:
                break
            self.clock.sleep(self.settings.poll)
        found = len(self.members.clients)
        if found < least:
            raise UserError(
                f"{found} clients are connected after federation.wait = {self.settings.wait:g} s, "
                f"and federation.min_replies is {least}; start SuperNodes with "
                "--node-config 'partition-id=N', or wait longer"
            )
        log.info("%d clients are connected", found)

    def look_for_nodes(self, round: int) -> None:
        """Greet those that are new, now and then."""
        if self.clock.now() < self.looked + LOOK_FOR_NODES:
            return
        self.looked = self.clock.now()
        new, left = self.members.seen(self.talk.nodes())
        for node in new:
            self.talk.greet(node, round, max(self.lifetime, LEAST_GREETING))
        for client in left:
            self.events.count("left")
            self.believed.pop(client, None)
            log.info("client %d has left", client)

    def take_up(self, reply: Reply) -> int | None:
        """A reply that belongs to no open round: somebody is late, or joins and is returned."""
        sent = reply.sent
        if sent.client is None:
            return self._welcome(reply)
        if reply.records is not None:
            self.events.count("late")
            log.info("client %d replies to round %d: late, dropped", sent.client, sent.round)
            self._learn_from(reply.records, sent.client, sent)
        return None

    def _learn_from(self, records: RecordDict, client: int, sent: Sent) -> None:
        """What a late client holds by now, so that its next update begins there.

        If that is a lie, it has to ask for its update once more.
        """
        try:
            content: Content = from_records(records, Answer, Asks)
        except RejectedError:
            return
        assert isinstance(content, Answer | Asks)
        is_same = content.lineage == self.lineage and content.round == sent.round
        if is_same and self.members.node_of.get(client) == sent.node:
            self.believed[client] = content.held if isinstance(content, Asks) else sent.round

    def _welcome(self, reply: Reply) -> int | None:
        if reply.records is None:
            self.members.forget(reply.sent.node)
            self.events.count("failed")
            log.warning("a node does not say who it is: %s", reply.failure)
            return None
        try:
            hello = from_records(reply.records, Hello)
        except RejectedError as error:
            self.events.count("rejected_header")
            log.warning("a node does not say who it is: %s", error)
            return None
        client = hello.client
        if not self.members.introduce(reply.sent.node, client):
            self.events.count("rejected_header")
            log.warning("a node says that it is client %d, which there is not", client)
            return None
        self.events.count("joined")
        if rivals := self.members.rivals(client):
            self.events.count("same_client")
            log.warning(
                "node %d says that it is client %d, as node %d does, and is believed from now on; "
                "unless it is the same node, restarted, two nodes have the same partition-id",
                reply.sent.node, client, rivals[-1],
            )  # fmt: skip
        self.believed[client] = hello.held if hello.lineage == self.lineage else 0
        log.info("client %d has joined and holds version %d", client, self.believed[client])
        return client

    def collect(self, training: Training) -> RunningMean:
        """The replies of the next round."""
        return _Round(self, training).collect()


class _Round:
    """The state of one round."""

    def __init__(self, collector: Collector, training: Training) -> None:
        self.all, self.training, self.round = collector, training, training.round
        self.events, self.clock, self.settings = (
            collector.events, collector.clock, collector.settings,
        )  # fmt: skip
        run = collector.run
        self.rate = run.rate(self.round)
        self.expected = replace(collector.expected, round=self.round)
        self.checksum = checksum(training.weights)
        self.order = order_of_asking(run.sampler, self.round)
        # Of this many the first replies count; the last cohort of an epoch may be smaller.
        self.enough = len(run.sampler.cohort(self.round))
        self.mean = RunningMean(run.method, run.device)
        self.accepted: set[int] = set()
        self.asked: set[int] = set()
        self.waiting: set[int] = set()
        self.resent: dict[int, int] = {}
        self.held_before: dict[int, int] = {}
        self.updates: dict[int, bytes] = {}

    def collect(self) -> RunningMean:
        for attempt in range(1, self.settings.attempts + 1):
            if self._until_deadline():
                self._close()
                return self.mean
            self.events.count("too_few")
            log.warning(
                "round %d, attempt %d: %d replies at the deadline, min_replies is %d",
                self.round, attempt, len(self.accepted), self.settings.min_replies,
            )  # fmt: skip
            self.asked, self.waiting = set(self.accepted), set()  # everybody else once more
        raise UserError(
            f"round {self.round} had {len(self.accepted)} replies after "
            f"{self.settings.attempts} deadlines of {self.settings.deadline:g} s, and "
            f"federation.min_replies is {self.settings.min_replies}; so far {self.events.rejected} "
            f"replies were rejected. The same command goes on from round {self.round}"
        )

    def _until_deadline(self) -> bool:
        """Whether the round can be closed, after waiting for that no longer than allowed."""
        end = self.clock.now() + self.settings.deadline
        while True:
            self.all.look_for_nodes(self.round)
            self._ask()
            for reply in self.all.talk.replies():
                self._take(reply)
            if len(self.accepted) >= self.enough:
                return True
            enough = len(self.accepted) >= min(self.settings.min_replies, self.enough)
            if enough and not self.waiting and not self._candidates():
                return True
            if self.clock.now() >= end:
                return enough
            self.clock.sleep(self.settings.poll)

    def _candidates(self) -> list[int]:
        nodes, busy = self.all.members.node_of, self.all.talk.busy()
        return [
            client
            for client in self.order
            if client in nodes and client not in self.asked and (nodes[client], client) not in busy
        ]

    def _ask(self) -> None:
        """Fill up to as many as are to be asked: at first, and for each that fails."""
        wanted = how_many(self.enough, self.settings.oversample)
        missing = wanted - len(self.accepted) - len(self.waiting)
        for client in self._candidates()[: max(missing, 0)]:
            if client in self.all.believed:
                held = self.all.believed.pop(client)
                held = held if held <= self.round else 0  # nobody can hold what there is not yet
                if held == 0 < int(self.training.ledger.held[client]):
                    self.events.count("lost")
                self.training.ledger.held[client] = held
            self._send(client)

    def _send(self, client: int) -> None:
        """The update from what the client is believed to hold, and the work."""
        ledger, position = self.training.ledger, self.training.position
        held = int(ledger.held[client])
        self.held_before.setdefault(client, held)
        if held not in self.updates:
            if len(self.updates) >= MOST_UPDATES:
                self.updates.clear()
            update = update_since(held, self.round, position, ledger)
            self.updates[held] = encode(update)
        ledger.download(np.array([client]), self.round, position)  # line 6
        work = Work(
            self.expected.digest, self.expected.lineage, self.round, client, self.rate,
            self.checksum, self.updates[held],
        )  # fmt: skip
        self.all.talk.send(self.all.members.node_of[client], work, self.all.lifetime)
        self.asked.add(client)
        self.waiting.add(client)

    def _take(self, reply: Reply) -> None:
        client = reply.sent.client
        if client is None or reply.sent.round != self.round:
            joined = self.all.take_up(reply)
            if joined is not None and joined not in self.accepted:
                # It may have restarted, and then knows nothing of what it was asked.
                self.asked.discard(joined)
                self.waiting.discard(joined)
            return
        self.waiting.discard(client)
        if reply.records is None:
            self.events.count("failed")
            log.warning("client %d fails in round %d: %s", client, self.round, reply.failure)
            return
        try:
            self._accept(client, from_records(reply.records, Answer, Asks))
        except RejectedError as error:
            self.events.count(f"rejected_{error.reason}")
            log.warning(
                "client %d is rejected in round %d (%s): %s",
                client, self.round, error.reason, error,
            )  # fmt: skip

    def _accept(self, client: int, content: Content) -> None:
        if client in self.accepted:
            self.events.count("duplicate")
            log.info("client %d replies twice to round %d: dropped", client, self.round)
        elif isinstance(content, Asks):
            self._send_again(client, content)
        elif isinstance(content, Answer):
            self.mean.add(judge(content, client, self.expected))
            self.accepted.add(client)
            self.held_before.pop(client, None)
            self.events.count("replies")

    def _send_again(self, client: int, asks: Asks) -> None:
        """The client holds something else: it gets what it misses from there, in one message."""
        self.resent[client] = self.resent.get(client, 0) + 1
        if self.resent[client] > MOST_RESENT or client not in self.all.members.node_of:
            raise RejectedError("round", "the client cannot be brought to the last version")
        known = asks.lineage == self.expected.lineage and asks.held <= self.round
        held = asks.held if known else 0
        log.info("client %d holds version %d and is brought to %d", client, held, self.round)
        self.events.count("resent")
        if held == 0:
            self.events.count("lost")
        self.training.ledger.held[client] = held
        self.held_before[client] = held
        self._send(client)

    def _close(self) -> None:
        """Who was asked and has not replied is not believed to hold the new version."""
        for client in self.waiting:
            self.events.count("silent")
            log.info("client %d has not replied to round %d in time", client, self.round)
        for client, held in self.held_before.items():
            self.training.ledger.held[client] = held
