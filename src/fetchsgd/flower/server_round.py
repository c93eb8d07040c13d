"""One round on the server: ask clients, judge and merge replies as they come, close in time.

A round is closed as soon as enough clients have replied, when nobody is left to wait for, or at its
deadline if at least `min_replies` have come. With fewer it is asked for again, and what has come
stays. If the mean of the replies must not be applied, it is asked for again from the start, of
other clients first. Replies to rounds that are closed are counted and dropped, except for what they
say about the version that the client holds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from fetchsgd.errors import DivergedError, UserError
from fetchsgd.exchange.dispatch import Dispatch
from fetchsgd.exchange.merging import Expected, judge
from fetchsgd.exchange.messages import Answer, Content, ResendRequest
from fetchsgd.exchange.rejections import RejectedError
from fetchsgd.flower.admission import Admission
from fetchsgd.flower.events import Events
from fetchsgd.flower.identities import servers_directory
from fetchsgd.flower.introductions import Introductions
from fetchsgd.flower.membership import how_many, order_of_asking
from fetchsgd.flower.patience import Patience
from fetchsgd.flower.protocol import from_records
from fetchsgd.flower.round_replies import RoundReplies
from fetchsgd.flower.settings import FederationSettings
from fetchsgd.flower.transport import Reply, Transport
from fetchsgd.robust import Merger
from fetchsgd.runs.setup import Setup
from fetchsgd.server.rounds import Merged, Training

log = logging.getLogger("flwr.fetchsgd")
MAX_RESENT = 2  # times in a round and for a client
MAX_OVERHEAD = 1 << 16  # bytes of a reply around its payload


@dataclass(frozen=True)
class Clock:
    """Time, so that tests need not wait for it."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Collector:
    """Everything about clients that outlives a round."""

    def __init__(
        self,
        setup: Setup,
        settings: FederationSettings,
        digest: str,
        lineage: str,
        transport: Transport,
        events: Events,
        admission: Admission,
        patience: Patience,
        clock: Clock | None = None,
        merger: Merger | None = None,
    ) -> None:
        self.setup, self.settings, self.merger = setup, settings, merger
        self.admission, self.patience = admission, patience
        self.transport, self.events, self.clock = transport, events, clock or Clock()
        self.clients = Introductions(
            setup.sampler.num_clients, lineage, transport, events,
            servers_directory(settings.directory),
        )  # fmt: skip
        self.expected = Expected(
            setup.method.message, setup.quantiser, digest, lineage, 0,
            setup.config.train.averaging == "examples",
            settings.max_norm, settings.clip_norm, settings.max_examples,
        )  # fmt: skip
        transport.max_reply_bytes = self.expected.longest_payload + MAX_OVERHEAD

    @property
    def lifetime(self) -> float:
        """Of a message: long enough to see a late reply, too short to pile up."""
        return 2 * self.settings.deadline

    @property
    def node_of(self) -> dict[int, int]:
        """The nodes of all clients that are connected."""
        return self.clients.members.node_of

    def wait_for_clients(self, round: int) -> None:
        """Until a whole cohort is there, or at least `min_replies` clients when time is up."""
        cohort, least = self.setup.sampler.per_round, self.settings.min_replies
        end = self.clock.now() + self.settings.wait
        while len(self.node_of) < cohort:
            self.look_for_nodes(round)
            for reply in self.transport.replies():
                self.clients.take(reply)
            if self.clock.now() >= end:
                break
            self.clock.sleep(self.settings.poll)
        found = len(self.node_of)
        if found < least:
            raise UserError(
                f"{found} clients are connected after federation.wait = {self.settings.wait:g} s, "
                f"and federation.min_replies is {least}; start SuperNodes with "
                "--node-config 'partition-id=N', or wait longer"
            )
        log.info("%d clients are connected", found)

    def look_for_nodes(self, round: int) -> None:
        self.clients.look_for_nodes(round, self.lifetime)

    def hear_claim(self, client: int, training: Training) -> None:
        """What it has said it holds since its last message is what it is believed to hold."""
        if client not in self.clients.claimed_versions:
            return
        held = self.clients.claimed_versions.pop(client)
        held = held if held <= training.round else 0  # later versions do not exist yet
        if held == 0 < training.ledger.held[client]:
            self.events.count("lost")
        training.ledger.held[client] = held

    def collect(self, training: Training, rate: float) -> Merged:
        """Lines 4 to 10: the replies of the next round, merged."""
        return _Round(self, training, rate).collect()


class _Round:
    """The state of one round."""

    def __init__(self, collector: Collector, training: Training, rate: float) -> None:
        self.all, self.training, self.round = collector, training, training.round
        self.events, self.clock, self.settings = (
            collector.events, collector.clock, collector.settings,
        )  # fmt: skip
        sampler, self.rate = collector.setup.sampler, rate
        self.expected = replace(collector.expected, round=self.round)
        self.dispatch = Dispatch(training, rate, self.expected.digest, self.expected.lineage)
        self.order = order_of_asking(sampler, self.round)
        # Of this many the first replies count; the last cohort of an epoch may be smaller.
        self.enough = len(sampler.cohort(self.round))
        self.resent: dict[int, int] = {}
        self._start_over()

    def _start_over(self) -> None:
        """No reply has come."""
        setup = self.all.setup
        # Where clients take steps of their own, what they send grows with the learning rate.
        scale = 1.0 if setup.config.local.is_one_gradient else self.rate
        merger = self.all.merger
        if merger is not None:
            merger.open(self.round, setup.sampler.cohort(self.round).tolist())
        self.replies = RoundReplies(
            self.all.admission, self.expected, scale, self.events, setup.device, merger
        )
        self.asked: set[int] = set()
        self.waiting: set[int] = set()

    def collect(self) -> Merged:
        refusal = ""
        for attempt in range(1, self.settings.attempts + 1):
            refusal = ""
            if not self._until_deadline():
                self._report_too_few(attempt)
            elif refusal := self.replies.refusal():
                self._refuse(attempt, refusal)
            else:
                self._close()
                return self.replies.close()
        raise self._given_up(refusal)

    def _report_too_few(self, attempt: int) -> None:
        self.events.count("too_few")
        log.warning(
            "round %d, attempt %d: %d replies at the deadline, min_replies is %d",
            self.round, attempt, self.replies.num_merged, self.settings.min_replies,
        )  # fmt: skip
        self.asked, self.waiting = set(self.replies.norms), set()  # everybody else once more

    def _refuse(self, attempt: int, refusal: str) -> None:
        """Nothing of this attempt is applied; other clients are asked first."""
        self.events.count("refused_steps")
        log.warning(
            "round %d, attempt %d is refused: %s; norms of the replies by client: %s",
            self.round, attempt, refusal, self.replies.norms_by_client(),
        )  # fmt: skip
        self.dispatch.believe(self.replies.norms)
        took_part = set(self.replies.norms)
        self.order.sort(key=lambda client: client in took_part)
        self._start_over()

    def _given_up(self, refusal: str) -> Exception:
        goes_on = f"The same command continues from round {self.round}"
        if refusal:
            return DivergedError(
                f"round {self.round} was refused {self.settings.attempts} times: {refusal}. The "
                "weights are those of the round before, and the lines of earlier rounds show since "
                "when norms have grown (federation/step_norm). Try a lower schedule.peak, or a "
                f"larger federation.norm_factor if this is no mistake. {goes_on}"
            )
        return UserError(
            f"round {self.round} had {self.replies.num_merged} replies after "
            f"{self.settings.attempts} deadlines of {self.settings.deadline:g} s, and "
            f"federation.min_replies is {self.settings.min_replies}; so far {self.events.rejected} "
            f"replies were rejected. {goes_on}"
        )

    def _until_deadline(self) -> bool:
        """Whether the round can be closed, after waiting for that no longer than allowed."""
        end = self.clock.now() + self.settings.deadline
        while True:
            self.all.look_for_nodes(self.round)
            self._ask()
            for reply in self.all.transport.replies():
                self._take(reply)
            is_late = self.clock.now() >= end
            if is_late or self._nobody_left or len(self.replies) >= self.enough:
                self.replies.decide(is_closing=True)
            self._distrust()
            if self.replies.num_merged >= self.enough:
                return True
            is_enough = self.replies.num_merged >= min(self.settings.min_replies, self.enough)
            if is_late or (is_enough and self._nobody_left):
                return is_enough
            self.clock.sleep(self.settings.poll)

    @property
    def _nobody_left(self) -> bool:
        return not self.waiting and not self._candidates()

    def _candidates(self) -> list[int]:
        """Who was rejected again and again is left out, unless the round has too few without."""
        nodes, busy = self.all.node_of, self.all.transport.busy()
        found = [
            client
            for client in self.order
            if client in nodes and client not in self.asked and (nodes[client], client) not in busy
        ]
        willing = [client for client in found if self.all.patience.may_ask(client, self.round)]
        missing = self.settings.min_replies - len(self.replies) - len(self.waiting)
        return willing or found[: max(missing, 0)]

    def _distrust(self) -> None:
        """Replies that were rejected once others had come: what they say of versions is known."""
        while self.replies.too_long:
            client = self.replies.too_long.pop()
            if client in self.all.node_of:
                self.all.clients.claimed_versions[client] = self.round
            self.all.patience.rejected(client, self.round)

    def _ask(self) -> None:
        """Fill up to as many as are to be asked: at first, and for each that fails."""
        wanted = how_many(self.enough, self.settings.oversample)
        missing = wanted - len(self.replies) - len(self.waiting)
        for client in self._candidates()[: max(missing, 0)]:
            self.all.hear_claim(client, self.training)
            self._send(client)

    def _send(self, client: int) -> None:
        """The update from what the client is believed to hold, and the work."""
        work = self.dispatch.work(client)
        self.all.transport.send(self.all.node_of[client], work, self.all.lifetime)
        self.asked.add(client)
        self.waiting.add(client)

    def _take(self, reply: Reply) -> None:
        client = reply.sent.client
        if client is None or reply.sent.round != self.round:
            joined = self.all.clients.take(reply)
            if joined is not None and joined not in self.replies:
                # It may have restarted, and then knows nothing of what it was asked.
                self.asked.discard(joined)
                self.waiting.discard(joined)
            return
        self.waiting.discard(client)
        if reply.failure:
            self.events.count("failed")
            log.warning("client %d fails in round %d: %s", client, self.round, reply.failure)
            return
        try:
            self._read(client, reply)
        except RejectedError as error:
            self.replies.reject(client, error)
            self.all.patience.rejected(client, self.round)
            if reply.records is not None:
                self.all.clients.learn_from(reply.records, client, reply.sent)

    def _read(self, client: int, reply: Reply) -> None:
        if reply.records is None:
            raise RejectedError("unreadable", reply.unreadable)
        content: Content = from_records(reply.records, Answer, ResendRequest)
        if client in self.replies:
            self.events.count("duplicate")
            log.info("client %d replies twice to round %d: dropped", client, self.round)
        elif isinstance(content, ResendRequest):
            self._send_again(client, content)
        elif isinstance(content, Answer):
            self.replies.add(client, judge(content, client, self.expected))

    def _send_again(self, client: int, request: ResendRequest) -> None:
        """The client holds something else: it gets what it misses from there, in one message."""
        self.resent[client] = self.resent.get(client, 0) + 1
        if self.resent[client] > MAX_RESENT or client not in self.all.node_of:
            raise RejectedError("round", "the client cannot be brought to the last version")
        held = self.dispatch.correct(client, request.lineage, request.held)
        log.info("client %d holds version %d and is brought to %d", client, held, self.round)
        self.events.count("resent")
        if held == 0:
            self.events.count("lost")
        self._send(client)

    def _close(self) -> None:
        """Who was asked and has not replied is not believed to hold the new version."""
        for client in self.waiting:
            self.events.count("silent")
            log.info("client %d has not replied to round %d in time", client, self.round)
        self.dispatch.believe(self.replies.norms)
        self.dispatch.close()
        self.all.patience.accepted(self.replies.norms)
