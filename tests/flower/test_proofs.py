"""Nodes prove which client they are: the true ones are believed, and nobody else is."""

import logging

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.fakegrid import FakeGrid
from flower.federations import at_look, counts, federation, train, weights
from hypothesis import given, settings
from hypothesis import strategies as st

from fetchsgd.errors import UserError
from fetchsgd.exchange.messages import Greeting, Hello
from fetchsgd.flower import client, proofs
from fetchsgd.flower.events import Events
from fetchsgd.flower.identities import read_directory, read_identity
from fetchsgd.flower.introductions import REFUSED_FOR, Introductions
from fetchsgd.flower.keys import make_identities
from fetchsgd.flower.protocol import HEADER, to_records
from fetchsgd.flower.transport import NONCE_BYTES, Transport

CLIENTS = 4


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    make_identities(folder, CLIENTS + 1)
    return folder


@pytest.fixture(autouse=True)
def _all_is_logged(caplog):
    caplog.set_level(logging.INFO)


class Hall:
    """A server that greets nodes, and does nothing else."""

    def __init__(self, keys, directory):
        self.keys, self.grid, self.events = keys, FakeGrid({}), Events()
        self.transport = Transport(self.grid, self.events, self.grid.clock.now)
        self.clients = Introductions(CLIENTS, "a run", self.transport, self.events, directory)

    def enter(self, number, identity=None, **more):
        path = self.keys / f"client-{number if identity is None else identity}"
        config = {} if identity is False else {"identity": str(path)}
        return self.grid.add(number, config=config, **more)

    def meet(self, after=3.0):
        """Greet who is new, and hear what they say: who is there by now."""
        self.grid.clock.sleep(after)
        self.clients.look_for_nodes(0, 60.0)
        for reply in self.transport.replies():
            self.clients.take(reply)
        return self.clients.members.node_of

    @property
    def refused(self):
        return self.events.counts["rejected_identity"]


@pytest.fixture
def hall(keys):
    return Hall(keys, read_directory(keys / "directory.json"))


def test_who_proves_it_is_believed(hall):
    nodes = [hall.enter(number) for number in range(CLIENTS)]
    assert hall.meet() == dict(enumerate(nodes))
    assert hall.refused == 0


def test_who_does_not_sign_is_told_how_on_both_sides(hall, caplog):
    hall.enter(3, identity=False)
    assert hall.meet() == {}
    assert hall.refused == 1
    theirs, ours = [r.getMessage() for r in caplog.records if "identity=" in r.getMessage()]
    for line in (theirs, ours):
        assert """--node-config 'partition-id=3 identity="/path/to/client-3"'""" in line
    assert theirs.startswith("the server wants proof that this node is client 3")
    assert ours.startswith("node 100 is refused: it says that it is client 3 and does not prove it")


def by_another_client(hall, _true):
    return hall.enter(3, identity=2)


def by_a_key_of_no_client(hall, _true):
    return hall.enter(3, identity=CLIENTS)


def without_a_key(hall, _true):
    return hall.enter(3, identity=False)


def passed_on(hall, true):
    """The true client answers the impostor's challenge: it signs for its own node."""
    return hall.enter(
        3, identity=False, behave=lambda message, _: client.introduce(message, true.context)
    )


def replayed(hall, true):
    """What the true client has said to an earlier challenge, for whichever node."""
    old = true.heard[-1]

    def repeat(_message, reply):
        reply.content[HEADER] = old.content[HEADER]
        return reply

    return hall.enter(3, identity=False, behave=repeat)


def from_another_greeting(hall, _true):
    """Signed by the right key for the right node, and for another challenge."""
    node = 777

    def sign_another(_message, reply):
        greeting = Greeting("a run", bytes(32))
        hello = Hello("", 3, 0)
        identity = read_identity(hall.keys / "client-3")
        hello = proofs.proven(hello, greeting, node, identity)
        reply.content[HEADER] = to_records(hello)[HEADER]
        return reply

    return hall.enter(3, node=node, behave=sign_another)


@pytest.mark.parametrize(
    "lie",
    [
        by_another_client, by_a_key_of_no_client, without_a_key, passed_on, replayed,
        from_another_greeting,
    ],
)  # fmt: skip
def test_an_impostor_takes_nobodys_place(hall, lie, caplog):
    def listen(_message, reply):
        true.heard.append(reply)
        return reply

    node = hall.enter(3, behave=listen)
    true = hall.grid.nodes[node]
    true.heard = []
    assert hall.meet() == {3: node}
    impostor = lie(hall, true)
    assert hall.meet() == {3: node}
    assert hall.refused == 1
    assert hall.events.counts["same_client"] == 0
    assert f"node {impostor} is refused: it says that it is client 3" in caplog.text
    # Nor when its place is free.
    hall.grid.nodes[node].online = False
    assert hall.meet(REFUSED_FOR) == {}
    assert hall.refused == 2


def test_its_own_old_introduction_is_worth_nothing_either(hall):
    said = []

    def repeat_the_first(_message, reply):
        said.append(reply.content[HEADER])
        reply.content[HEADER] = said[0]
        return reply

    node = hall.enter(1, behave=repeat_the_first)
    assert hall.meet() == {1: node}
    hall.grid.nodes[node].online = False
    hall.meet()
    hall.grid.nodes[node].online = True
    assert hall.meet() == {}
    assert hall.refused == 1


@pytest.mark.parametrize(
    "changed",
    [{"client": 2}, {"held": 7}, {"lineage": "another"}, {"signature": b"\1" * 64},
     {"signature": b"short"}],
    ids=str,
)  # fmt: skip
def test_all_that_is_said_is_signed(hall, changed):
    def change(_message, reply):
        for name, value in changed.items():
            reply.content[HEADER][name] = value
        return reply

    hall.enter(1, behave=change)
    assert hall.meet() == {}
    assert hall.refused == 1


def test_a_restarted_node_takes_its_own_number_back(hall, caplog):
    before = hall.enter(2)
    assert hall.meet() == {2: before}
    after = hall.enter(2)
    assert hall.meet() == {2: after}
    assert hall.refused == 0
    assert "is believed from now on, as it has that client's key" in caplog.text


def test_a_node_that_was_refused_may_try_again_later(hall):
    """A SuperNode with a registered key is the same node when it comes back with another key."""
    node = hall.enter(2, identity=False)
    hall.meet()
    hall.grid.nodes[node].context.node_config["identity"] = str(hall.keys / "client-2")
    assert hall.meet() == {}
    assert hall.meet(REFUSED_FOR) == {2: node}
    assert hall.refused == 1


def test_clients_whose_keys_nobody_has_cannot_join(keys, caplog):
    known = read_directory(keys / "directory.json")
    hall = Hall(keys, {number: known[number] for number in (0, 1)})
    assert "has no keys of 2 of the 4 clients, who cannot join: 2, 3; make them by" in caplog.text
    nodes = [hall.enter(number) for number in (1, 3)]
    assert hall.meet() == {1: nodes[0]}
    assert "client 3, whose key is not in federation.directory; make one by" in caplog.text


def test_without_a_directory_nothing_is_proven_and_that_is_said(keys, caplog):
    hall = Hall(keys, None)
    nodes = [hall.enter(1), hall.enter(1, identity=False)]
    assert hall.meet() == {1: nodes[1]}
    assert "nodes are believed which client they are, and nothing proves it" in caplog.text
    assert "is believed from now on, though nothing proves it" in caplog.text
    # Not even its key is read.
    hall.grid.add(2, config={"identity": "nowhere"})
    assert set(hall.meet()) == {1, 2}


numbers, texts = st.integers(0, 2**63), st.text(max_size=4)
everything = st.tuples(texts, st.binary(max_size=4), numbers, numbers, texts, numbers)


@settings(max_examples=50)
@given(everything, everything)
def test_no_two_introductions_are_signed_by_the_same_bytes(one, other):
    def signed(run, challenge, node, number, lineage, held):
        return proofs._signed(Hello(lineage, number, held), Greeting(run, challenge), node)

    assert (signed(*one) == signed(*other)) == (one == other)


def test_challenges_are_fresh(hall):
    for number in range(CLIENTS):
        hall.enter(number)
    hall.clients.look_for_nodes(0, 60.0)
    sent = [sent.greeting.challenge for sent in hall.transport.out.values()]
    assert len(set(sent)) == CLIENTS
    assert {len(challenge) for challenge in sent} == {proofs.CHALLENGE_BYTES}


def test_nobody_else_can_work_out_the_id_of_a_message(hall, monkeypatch):
    """Flower's ids follow from what is in a message, and who knows one may reply to it."""
    pushed = []
    monkeypatch.setattr(hall.grid, "push_messages", lambda messages: pushed.extend(messages) or [])
    for _ in range(2):
        hall.transport.greet(100, Greeting("a run"), 0, 60.0)
    for message in pushed:
        message.metadata.__dict__["_created_at"] = 0.0
    nonces = [message.content[HEADER].pop("nonce") for message in pushed]
    assert {len(nonce) for nonce in nonces} == {NONCE_BYTES}
    assert nonces[0] != nonces[1]
    assert pushed[0].object_id == pushed[1].object_id  # nothing else tells them apart


def test_training_goes_on_as_if_the_impostor_were_not_there(tmp_path, keys):
    """It claims a number before and during the run, and replies to nothing."""
    listed = {"federation__directory": str(keys / "directory.json")}
    more = {"federation__clients": CLIENTS, "train__epochs": 12.0}

    def with_keys(out, **more):
        grid = federation(out, clients=[], **more)
        for number in range(CLIENTS):
            grid.add(number, config={"identity": str(keys / f"client-{number}")})
        return grid

    clean = train(with_keys(tmp_path / "clean", **more))
    grid = with_keys(tmp_path / "run", **more, **listed)
    early = grid.add(0, config={"identity": str(keys / "client-1")})
    late = []
    at_look(grid, 3, lambda: late.append(grid.add(2)))
    result = train(grid)
    assert counts(result)["rejected_identity"] == 2
    assert counts(result)["replies"] == counts(clean)["replies"]
    assert counts(result)["same_client"] == 0
    assert {node for node, kind in grid.kinds if kind == "train"}.isdisjoint({early, *late})
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "clean"))


def test_an_app_that_names_no_directory_that_is_there(tmp_path):
    grid = federation(tmp_path / "run", federation__directory=str(tmp_path / "nowhere.json"))
    with pytest.raises(UserError, match="cannot read the directory .*nowhere.json"):
        train(grid)


A, B = "aa" * 32, "bb" * 32


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f'{{"clients": {{"0": "{A}", "0": "{B}"}}}}', "a name stands there twice"),
        (f'{{"clients": {{"0": "{A}"}}, "clients": {{"0": "{B}"}}}}', "a name stands there twice"),
        (f'{{"clients": {{"0": "{A}", "00": "{B}"}}}}', "'00' is not a client's number"),
        (f'{{"clients": {{"-1": "{A}"}}}}', "'-1' is not a client's number"),
        (f'{{"clients": {{"\\u0663": "{A}"}}}}', "is not a client's number"),
        (f'{{"clients": {{"0": "{A}", "1": "{A}"}}}}', "two clients have the same key"),
        ('{"clients": {"0": "abcd"}}', "the key of client 0 has 2 bytes, not 32"),
        ('{"clients": {"0": 7}}', "is not a directory of clients' public keys"),
        ('{"clients": {"0": "xyz"}}', "is not a directory of clients' public keys"),
        ('{"clients": [1]}', "is not a directory of clients' public keys"),
        ("[]", "is not a directory of clients' public keys"),
        ("{}", "is not a directory of clients' public keys: 'clients'"),
        ("{", "is not a directory of clients' public keys"),
    ],
)
def test_a_directory_that_is_none_gets_a_sentence(tmp_path, text, sentence):
    path = tmp_path / "directory.json"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_directory(path)
