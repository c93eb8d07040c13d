"""Rounds of secure aggregation in one process, with whatever may happen to messages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fetchsgd.secure import (
    Client,
    ClientState,
    RefusedError,
    Secret,
    Server,
    TooFewError,
    make_terms,
)

ANSWERS = ("join", "share", "mask", "agree", "reveal")
NEVER = len(ANSWERS)


def identity(number):
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"%d" % number).digest())


DIRECTORY = {number: identity(number).public_key().public_bytes_raw() for number in range(200)}


def terms_of(clients, cells=70, bits=8, colluding=0.0, dropping=0.3, **others):
    given = {"run": b"the run of tests", "round": 1, "totals": 2, **others}
    cohort = tuple(clients) if not isinstance(clients, int) else tuple(range(clients))
    run, number = given.pop("run"), given.pop("round")
    return make_terms(
        run, number, cohort, cells, bits, colluding=colluding, dropping=dropping, **given
    )


def inputs_of(terms, seed=0):
    rng = np.random.default_rng(seed)
    return {
        number: (
            rng.integers(0, 1 << terms.bits, terms.cells, dtype=np.uint32),
            rng.integers(0, 1 << 64, terms.totals, dtype=np.uint64),
        )
        for number in terms.cohort
    }


def seed_of(number, salt=0):
    return Secret(hashlib.sha256(b"seed %d %d" % (number, salt)).digest())


def unchanged(phase, number, message):
    return [message]


@dataclass
class Round:
    """What happens to each message is up to `down` and `up`, which give what arrives instead."""

    terms: object
    drops: dict[int, int] = field(default_factory=dict)  # the phase that a client does not answer
    down: Callable = unchanged
    up: Callable = unchanged
    through_bytes: bool = False
    salt: int = 0

    def __post_init__(self):
        self.inputs = inputs_of(self.terms)
        self.clients = {n: Client(n, identity(n), DIRECTORY) for n in self.terms.cohort}
        self.states = {}
        self.server = Server(self.terms, DIRECTORY)
        self.sent = []  # phase, "down" or "up", client and message, before they are changed
        self.received = []
        self.refused = []
        self.failure = None

    def answer(self, phase, number, message):
        client = self.clients[number]
        if phase == 0:
            state, answer = client.join(message, seed_of(number, self.salt))
        else:
            more = self.inputs[number] if phase == 2 else ()
            state, answer = getattr(client, ANSWERS[phase])(self.states[number], message, *more)
        if self.through_bytes:
            state = ClientState.from_bytes(state.to_bytes())
        self.states[number] = state
        return answer

    def answers(self, phase, messages):
        found = []
        for number, message in messages.items():
            self.sent.append((phase, "down", number, message))
            if self.drops.get(number, NEVER) <= phase:
                continue
            for arrived in self.down(phase, number, message):
                if phase > 0 and number not in self.states:
                    continue  # its answer was another client's, or of another round
                try:
                    answer = self.answer(phase, number, arrived)
                except RefusedError as error:
                    self.refused.append(error)
                else:
                    self.sent.append((phase, "up", number, answer))
                    found += self.up(phase, number, answer)
        return found

    def play(self, until=NEVER, shuffle=None):
        messages = self.server.invitations()
        for phase in range(until):
            found = self.answers(phase, messages)
            if shuffle is not None:
                np.random.default_rng(shuffle + phase).shuffle(found)
            for answer in found:
                try:
                    self.server.receive(answer)
                except RefusedError as error:
                    self.refused.append(error)
                else:
                    self.received.append(answer)
            try:
                messages = self.server.close()
            except TooFewError as error:
                self.failure = error
                return self
        self.messages = messages
        return self

    def check(self):
        """The sum of those who are in it, to the bit; or none."""
        result = self.server.result
        if self.failure is not None:
            assert result is None
            return False
        cells = sum(self.inputs[n][0].astype(np.uint64) for n in result.clients)
        totals = sum((self.inputs[n][1] for n in result.clients), np.zeros(2, np.uint64))
        assert np.array_equal(result.cells, cells % (1 << self.terms.bits))
        assert np.array_equal(result.totals, totals)
        assert len(result.clients) >= self.terms.least
        return True
