"""What a client with memory of its own keeps, whatever becomes of its replies.

The law: given = merged + kept. Every gradient that a client has computed is either in what the
server has merged or in what the client still remembers, and nothing is there twice.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from fetchsgd.exchange.agreement import checksum, digest
from fetchsgd.exchange.client import MEMORY, Participant, Pending
from fetchsgd.exchange.client_state import ClientState
from fetchsgd.exchange.messages import Answer, ResendRequest, Work
from fetchsgd.flower.client_round import Client
from fetchsgd.runs.settings import resolve
from fetchsgd.runs.setup import Setup
from fetchsgd.server.rounds import Merged, after_round
from fetchsgd.wire import decode, encode

ME, CLIENTS = 3, 12
FATES = ("merged", "late", "lost", "rejected", "asked twice", "asked twice, then lost", "away")


class InMemory:
    """Keeps what it is given, as a SuperNode does."""

    def __init__(self):
        self.kept = None

    def load(self):
        return self.kept

    def save(self, kept):
        self.kept = ClientState(
            kept.lineage, kept.version, {n: v.copy() for n, v in kept.vectors.items()}
        )


class Server:
    """The server's side of one client's rounds, without Flower."""

    def __init__(self, *sets):
        given = {"task": {"name": "tinytask:tiny"}, "method": {"name": "local_topk"}}
        self.setup = Setup(resolve(given, ["k=10", "local_error=true", "epochs=9", *sets]))
        self.training = self.setup.start()
        self.digest = digest(self.setup)

    def work(self):
        training, ledger = self.training, self.training.ledger
        update = ledger.message(ME, training.round, training.place)
        ledger.download(np.array([ME]), training.round, training.place)
        return Work(
            self.digest, "lineage", training.round, ME, 0.1, checksum(training.weights),
            int(ledger.merged[ME]), 0.0, encode(update),
        )  # fmt: skip

    def close(self, answer):
        """The round, with this client's reply in it or without; another client is always there."""
        setup, message = self.setup, self.setup.method.message
        total = torch.zeros(message.shape, dtype=torch.float64)
        clients = [7]
        if answer is not None:
            message.add(total, message.read(decode(answer.payload)), 1.0)
            clients.append(ME)
        noise = torch.randn(
            message.shape, generator=torch.Generator().manual_seed(int(answer is None))
        )
        mean = (total.float() + 0.01 * noise) / len(clients)
        merged = Merged(mean, np.array(clients), 0, 0.0, torch.tensor(0.0))
        self.training = after_round(self.training, merged, 0.1, setup.method, setup.grid)
        return total.float()


def vector_of(client, task, spied):
    """The answer to some work, and the gradient that was computed for it."""
    spied.clear()
    return client.answer(task), (spied[0] if spied else None)


@settings(max_examples=60, deadline=None)
@given(fates=st.lists(st.sampled_from(FATES), min_size=1, max_size=9), grid=st.booleans())
def test_given_is_merged_plus_kept(fates, grid):
    server = Server(*(["grid=steps"] if grid else []))
    client = Client(server.setup, ME, InMemory())
    message, spied = server.setup.method.message, []
    real = type(message).remember

    def remember(self, vector, memory):
        spied.append(vector.clone())
        return real(self, vector, memory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(message), "remember", remember)
        given = torch.zeros(server.setup.model.dim)
        merged = torch.zeros_like(given)
        for fate in fates:
            if fate == "away":
                server.close(None)
                continue
            task = server.work()
            answer, vector = vector_of(client, task, spied)
            assert isinstance(answer, Answer)
            given += vector
            if fate.startswith("asked twice"):
                again, twice = vector_of(client, task, spied)
                assert again == answer  # to the bit
                assert twice is None  # and nothing was computed, or remembered, again
            arrives = fate in ("merged", "asked twice")
            merged += server.close(answer if arrives else None)
        # What the client knows once it is told which version its last reply went into.
        told = server.work().merged
        me = Participant(server.setup, ME)
        pending = me.memory(client.keeper.load(), _pending(client), told)
        kept = torch.zeros_like(given) if pending is None else pending["error"][0]
        torch.testing.assert_close(merged + kept, given, rtol=1e-4, atol=1e-5)


def _pending(client):
    return Pending.of(client.keeper.load())


def test_a_reply_that_was_merged_is_forgotten_only_then():
    server = Server()
    client = Client(server.setup, ME, InMemory())
    first = client.answer(server.work())
    sent = decode(first.payload).indices
    unsent = client.keeper.kept.vectors[MEMORY + "error"]
    assert (unsent[0, sent.numpy()] != 0).all()  # nobody has said that it arrived
    server.close(None)
    client.answer(server.work())  # it did not: all of it is still there, and more
    assert (client.keeper.kept.vectors[MEMORY + "error"][0, sent.numpy()] != 0).all()


def test_weights_that_are_damaged_do_not_take_the_memory_with_them():
    server = Server("grid=steps")
    client = Client(server.setup, ME, InMemory())
    for _ in range(2):  # so that it holds a version that does not follow from the seed alone
        server.close(client.answer(server.work()))
    client.keeper.kept.vectors["held"] += 1
    before = client.keeper.kept.vectors[MEMORY + "error"].copy()
    asked = client.answer(server.work())
    assert isinstance(asked, ResendRequest)
    assert asked.held == 0
    assert np.array_equal(client.keeper.kept.vectors[MEMORY + "error"], before)
    server.training.ledger.held[ME] = 0
    assert isinstance(client.answer(server.work()), Answer)


def test_what_an_optimiser_remembers_moves_on_once_a_round():
    """Also where a request comes twice, or a reply is lost; and it outlives damaged weights."""
    server = Server("local.steps=3", "optimizer=adamw", "state=keep", "grid=steps")
    client = Client(server.setup, ME, InMemory())
    steps = []
    for arrives in (True, False, True):
        task = server.work()
        answer = client.answer(task)
        assert client.answer(task) == answer
        steps.append(float(client.keeper.kept.vectors["memory.inner.step"][0]))
        server.close(answer if arrives else None)
    assert steps == [3, 6, 9]
    client.keeper.kept.vectors["held"][0] += 1
    assert isinstance(client.answer(server.work()), ResendRequest)
    assert client.keeper.kept.vectors["memory.inner.step"][0] == 9


@pytest.mark.parametrize("method", ["fetchsgd", "uncompressed", "local_topk"])
def test_clients_without_memory_keep_nothing_but_their_version(method):
    setup = Setup(resolve({"task": {"name": "tinytask:tiny"}, "method": {"name": method}}))
    training, keeper = setup.start(), InMemory()
    payload = encode(training.ledger.message(ME, 0, training.place))
    work = Work(digest(setup), "lineage", 0, ME, 0.1, checksum(training.weights), 0, 0.0, payload)
    answer = Client(setup, ME, keeper).answer(work)
    assert keeper.kept.vectors.keys() == {"held"}
    assert Client(setup, ME, keeper).answer(work) == answer
