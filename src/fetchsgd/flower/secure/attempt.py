"""One attempt at a round of secure aggregation: five phases over Flower, each with a deadline.

A phase ends when all who were asked have answered or failed, and at its deadline. Who has not
answered by then has dropped out; answers that come later are counted and dropped. The model goes
out with the deliveries, so nobody who drops out before fetches it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fetchsgd.exchange.dispatch import Dispatch
from fetchsgd.exchange.messages import (
    Content,
    ResendRequest,
    SecureCall,
    SecureReply,
    SecureWork,
)
from fetchsgd.exchange.rejections import RejectedError
from fetchsgd.flower.protocol import from_records
from fetchsgd.flower.secure.account import Account
from fetchsgd.flower.secure.show import Show
from fetchsgd.flower.server_round import MAX_RESENT, Collector
from fetchsgd.flower.transport import Reply
from fetchsgd.secure import Phase, RefusedError, Server, Sum, Terms
from fetchsgd.secure.frames import read_header

log = logging.getLogger("flwr.fetchsgd")


class Attempt:
    """From invitations to the sum, or TooFewError.

    up, down: bytes of the protocol, accepted and sent. masked: who is known to hold the model.
    """

    def __init__(
        self,
        collector: Collector,
        dispatch: Dispatch,
        terms: Terms,
        directory: Mapping[int, bytes],
        account: Account | None = None,
    ) -> None:
        self.all, self.dispatch, self.terms, self.account = collector, dispatch, terms, account
        self.events, self.clock, self.settings = (
            collector.events, collector.clock, collector.settings,
        )  # fmt: skip
        self.server = Server(terms, directory)
        self.show = Show(terms, self.settings.show)
        self.up = self.down = 0
        self.masked: set[int] = set()
        self.dropped: set[int] = set()
        self.messages: dict[int, bytes] = {}  # of the phase
        self.waiting: set[int] = set()
        self.resent: dict[int, int] = {}

    def run(self) -> Sum:
        self.messages = self.server.invitations()
        while self.server.phase < Phase.DONE:
            if self.server.phase is Phase.REVEAL and self.account is not None:
                self.account.reveal(self.masked)
            self._phase()
            self.messages = self.server.close()
        assert self.server.result is not None
        self.show.sum(self.server.result)
        return self.server.result

    def _phase(self) -> None:
        phase = self.server.phase
        end = self.clock.now() + self._seconds
        for client in self.messages:
            self._send(client)
        while True:
            self.all.look_for_nodes(self.terms.round)
            for reply in self.all.transport.replies():
                self._take(reply)
            if not self.waiting or self.clock.now() >= end:
                break
            self.clock.sleep(self.settings.poll)
        self.events.count("silent", len(self.waiting))
        self.waiting.clear()
        answered = self.server.answered
        self.dropped |= self.messages.keys() - answered
        log.info(
            "round %d, attempt %d, phase %s: %d of %d clients have answered%s",
            *self.terms.place, phase.name.lower(), len(answered), len(self.messages),
            _named(self.messages.keys() - answered),
        )  # fmt: skip

    @property
    def _seconds(self) -> float:
        """Of a phase; clients train in the one in which they mask."""
        is_long = self.server.phase is Phase.MASK
        return self.settings.deadline if is_long else self.settings.phase_deadline

    @property
    def _part(self) -> tuple[int, Phase]:
        return self.terms.attempt, self.server.phase

    def _send(self, client: int) -> None:
        message, node = self.messages[client], self.all.node_of.get(client)
        if node is None:  # it has left
            return
        content: SecureCall | SecureWork
        if self.server.phase is Phase.MASK:
            self.all.hear_claim(client, self.dispatch.training)
            content = SecureWork.of(self.dispatch.work(client), message)
        else:
            content = SecureCall(self.dispatch.lineage, self.terms.round, client, message)
        # Twice as long as anybody waits for it, so that a late answer is seen to be one.
        self.all.transport.send(node, content, 2 * self._seconds, self._part)
        self.down += len(message)
        self.waiting.add(client)

    def _take(self, reply: Reply) -> None:
        client = reply.sent.client
        if client is None or (reply.sent.round, reply.sent.part) != (self.terms.round, self._part):
            joined = self.all.clients.take(reply)
            if joined is not None:
                self._welcome(joined)
            return
        if reply.failure:
            self._fail(client, reply.failure)
            return
        try:
            self._read(client, reply)
        except RejectedError as error:
            self.waiting.discard(client)
            self.events.reject(client, error.reason)
            log.warning(
                "client %d is rejected in round %d (%s): %s",
                client, self.terms.round, error.reason, error,
            )  # fmt: skip

    def _fail(self, client: int, reason: str) -> None:
        """A node that was killed fails when Flower misses it: its client may be back by then."""
        self.events.count("failed")
        again = (self.all.node_of.get(client), client) in self.all.transport.busy()
        if again or client in self.server.answered:
            log.info("a message to client %d in round %d is lost", client, self.terms.round)
            return
        self.waiting.discard(client)
        log.warning("client %d drops out of round %d: %s", client, self.terms.round, reason)

    def _welcome(self, client: int) -> None:
        """It may have restarted, and goes on from what it has on its disk."""
        missing = client in self.messages and client not in self.server.answered
        if missing and self.resent.get(client, 0) < MAX_RESENT:
            self._again(client)

    def _read(self, client: int, reply: Reply) -> None:
        if reply.records is None:
            raise RejectedError("unreadable", reply.unreadable)
        is_mask = self.server.phase is Phase.MASK
        kinds = (SecureReply, ResendRequest) if is_mask else (SecureReply,)
        content: Content = from_records(reply.records, *kinds)
        if client in self.server.answered:
            self.events.count("duplicate")
        elif isinstance(content, ResendRequest):
            if self.resent.get(client, 0) >= MAX_RESENT:
                raise RejectedError("round", "the client cannot be brought to the last version")
            held = self.dispatch.correct(client, content.lineage, content.held)
            log.info("client %d holds version %d and is brought on", client, held)
            self.events.count("resent")
            if held == 0:
                self.events.count("lost")
            self._again(client)
        elif isinstance(content, SecureReply):
            self._receive(client, content.payload)

    def _receive(self, client: int, message: bytes) -> None:
        phase = self.server.phase
        try:
            _, signer, _ = read_header(message)
            if signer == client:
                self.server.receive(message)
        except RefusedError as error:
            raise RejectedError("secure", str(error)) from error
        if signer != client:
            raise RejectedError("secure", f"client {client} sends an answer of client {signer}")
        self.waiting.discard(client)
        self.up += len(message)
        if phase is Phase.MASK:
            self.masked.add(client)
            self.show.masked(client, message)

    def _again(self, client: int) -> None:
        """The same message once more, with what the client misses of the model."""
        self.resent[client] = self.resent.get(client, 0) + 1
        self._send(client)


def _named(missing: set[int]) -> str:
    return f"; without {', '.join(map(str, sorted(missing)))}" if missing else ""
