"""Secure aggregation where clients drop out, lie and come back, and servers are killed."""

import json
import os
from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.federations import counts, lines, train, train_until_killed, weights
from flower.phases import PHASES, phase_of
from flower.secretly import (
    Sums,
    changed_in,
    node_config,
    own_folder,
    quick_folder,
    secret_federation,
    silent_from,
)
from flwr.app import Error, Message

from fetchsgd.errors import UserError
from fetchsgd.exchange.messages import SecureWork
from fetchsgd.flower.secure import work
from fetchsgd.flower.secure.attempt_numbers import Attempts
from fetchsgd.flower.secure.state import SecureFolder
from fetchsgd.flower.settings import read_settings
from fetchsgd.runs.checkpoint import FILE
from fetchsgd.simulation import Run

SIX = {"clients": range(6), "federation__clients": 6}


@pytest.fixture(scope="module")
def keys():
    with quick_folder() as folder:
        yield folder


@pytest.fixture
def folder(keys):
    return own_folder(keys)


@pytest.fixture
def sums(monkeypatch):
    return Sums(monkeypatch)


@pytest.mark.parametrize("phase", range(5), ids=PHASES)
def test_one_client_drops_out(phase, folder, sums):
    """Before its vector has come it is not in the sum; after that it is."""
    grid = secret_federation(folder / "run", **SIX)
    grid.nodes[103].behave = silent_from(phase)
    result = train(grid)
    sums.check()
    assert sums.clients == [(0, 1, 2, 4, 5) if phase <= 2 else (0, 1, 2, 3, 4, 5)]
    assert counts(result)["silent"] == 1
    assert counts(result)["too_few"] == 0
    assert counts(result)["replies"] == (5 if phase <= 2 else 6)


@pytest.mark.parametrize("phase", range(5), ids=PHASES)
def test_too_many_drop_out_and_others_take_their_place(phase, folder, sums):
    grid, dropped = secret_federation(folder / "run"), set()

    def behaviour(client):
        def behave(message, reply):
            if phase_of(message) is not None and len(dropped) < 2:
                dropped.add(client)
            return silent_from(phase)(message, reply) if client in dropped else reply

        return behave

    for node in grid.nodes.values():
        node.behave = behaviour(node.client)
    result = train(grid)
    sums.check()
    assert sums.places == [(0, 0), (0, 1)]
    before, after = (set(terms.cohort) for terms in sums.terms)
    assert len(dropped) == 2
    assert dropped <= before
    assert not dropped & after
    assert len(sums.found) == 1  # of the first attempt there is no sum
    assert counts(result)["too_few"] == 1
    assert counts(result)["replies"] == 6
    assert len(lines(folder / "run")) == 1


def test_a_hopeless_round_ends_the_run_and_nothing_counts(folder, sums, caplog):
    grid = secret_federation(folder / "run", federation__attempts=2, **SIX)
    for node in grid.nodes.values():
        node.behave = silent_from(3)
    with (
        caplog.at_level("WARNING", "flwr.fetchsgd"),
        pytest.raises(UserError, match="round 0 was tried 2 times, and at last dropped"),
    ):
        train(grid)
    assert "try 1 is dropped" in caplog.text
    assert not sums.found
    assert not (folder / "run" / FILE).exists()
    assert not lines(folder / "run")


@pytest.mark.parametrize(
    ("how", "phase"),
    [*(("bit", phase) for phase in range(5)), ("cut", 2), ("other", 0), ("other", 2)],
)
def test_a_lie_is_seen_and_its_client_is_left_out(how, phase, folder, sums):
    """A bit is turned, the end is missing, or the answer is that of another client."""
    others = {}
    grid = secret_federation(folder / "run", **SIX)

    def lie(data):
        if how == "bit":
            return data[:40] + bytes([data[40] ^ 1]) + data[41:]
        return data[:-1] if how == "cut" else others.get(phase, data)

    def keep(message, reply):
        if phase_of(message) is not None:
            others[phase_of(message)] = reply.content["payload"]["wire"].data
        return reply

    grid.nodes[100].behave = keep
    grid.nodes[102].behave = changed_in(phase, lie)
    result = train(grid)
    sums.check()
    assert counts(result)["rejected_secure"] == 1
    assert (2 in sums.clients[0]) == (phase > 2)


@pytest.mark.parametrize("looks", range(1, 6), ids=PHASES)
def test_a_server_killed_in_any_phase_does_the_round_again(looks, folder, sums):
    """As a higher attempt, with the same weights in the end as if nothing had happened."""
    train_until_killed(secret_federation(folder / "cut"), looks)
    train(secret_federation(folder / "cut"))
    sums.check()
    assert sums.places == [(0, 0), (0, 1)]
    settings, _ = read_settings(secret_federation(folder / "cut").run_config)
    Run(settings).execute(folder / "whole")
    assert torch.equal(weights(folder / "cut"), weights(folder / "whole"))


def test_a_server_that_tells_one_client_another_rate_gets_nothing_of_it(folder, sums, monkeypatch):
    """All of a round are bound to what their vectors are computed from."""
    of = SecureWork.of

    def another(work, delivery):
        return of(replace(work, rate=7 * work.rate) if work.client == 3 else work, delivery)

    monkeypatch.setattr(SecureWork, "of", another)
    result = train(secret_federation(folder / "run", **SIX))
    assert sums.clients == [(0, 1, 2, 4, 5)]
    assert counts(result)["failed"] == 1


def test_attempts_are_never_numbered_twice(tmp_path):
    attempts = Attempts(tmp_path, "0123456789abcdef")
    name, first = attempts.begin(3)
    assert (len(name), first) == (16, 0)
    assert [attempts.begin(3) for _ in range(2)] == [(name, 1), (name, 2)]
    assert Attempts(tmp_path, "0123456789abcdef").begin(4) == (name, 0)
    other, again = attempts.begin(3)  # set back by hand
    assert other != name
    assert again == 0
    (tmp_path / "secure.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        attempts.begin(4)


@pytest.mark.parametrize("phase", [1, 2, 3], ids=PHASES[1:4])
def test_a_client_that_restarts_goes_on_in_the_same_round(phase, folder, sums):
    """It has not answered, is away for a while, and is asked again once it is back."""
    grid = secret_federation(folder / "run", **SIX)
    node = grid.nodes[103]
    node.behave = silent_from(phase, times=1)
    since = []

    def come_and_go():
        if not since and grid.kinds.count((103, "train")) == phase + 1:
            since.append(grid.time)
        node.online = not since or grid.time > since[0] + 4

    grid.before_look = come_and_go
    grid.run_config.update({"federation.phase_deadline": 30.0, "federation.deadline": 30.0})
    result = train(grid)
    sums.check()
    assert sums.clients == [(0, 1, 2, 3, 4, 5)]
    assert counts(result)["left"] >= 1
    assert counts(result)["too_few"] == 0


def test_a_node_that_is_missed_late_is_not_its_client(folder, sums):
    """Killed and started anew, as another node: the old one fails while the new one is at work."""
    grid, new = secret_federation(folder / "run", **SIX), []
    old = grid.nodes[103]

    def die(message, reply):
        if phase_of(message) != 2:
            return reply
        old.delay = 12  # looks
        return Message(Error(5, "Node Unavailable"), reply_to=message)

    def train_for_long(message, reply):
        grid.nodes[new[0]].delay = 30 if phase_of(message) == 2 else 0
        return reply

    def restart():
        if not new and grid.kinds.count((103, "train")) == 3:
            old.online = False
            new.append(grid.add(3, config=node_config(folder / "run", 3), behave=train_for_long))

    old.behave, grid.before_look = die, restart
    grid.run_config.update({"federation.phase_deadline": 60.0, "federation.deadline": 60.0})
    result = train(grid)
    sums.check()
    assert new
    assert sums.clients == [(0, 1, 2, 3, 4, 5)]
    assert counts(result)["failed"] == 1
    assert counts(result)["silent"] == 0


def test_what_is_left_of_a_dropped_round_is_deleted_once_the_run_is_further(folder):
    """And, whatever the run, after a day."""
    grid = secret_federation(folder / "run", **SIX)
    grid.nodes[103].behave = silent_from(3)
    train(grid)
    own = SecureFolder(folder / "state", 3)
    kept = own.load()
    assert kept is not None
    lineage = json.loads((folder / "run" / "federation.json").read_text())["lineage"]
    for run, round in ((lineage, 0), ("another", 5)):
        own.forget_if_over(run, round)
        assert own.path.exists()
    own.forget_if_over(lineage, 1)
    assert not own.path.exists()
    own.save(kept)
    os.utime(own.path, (0, 0))
    own.forget_if_over("another", 0)
    assert not own.path.exists()


def test_a_client_that_lost_its_part_is_left_out(folder, sums):
    grid = secret_federation(folder / "run", **SIX)

    def lose(message, reply):
        if phase_of(message) == 1:
            (folder / "state" / "client-3.secure").write_bytes(b"half of it")
        return reply

    grid.nodes[103].behave = lose
    result = train(grid)
    sums.check()
    assert sums.clients == [(0, 1, 2, 4, 5)]
    assert counts(result)["failed"] == 1


def test_a_client_that_lost_the_model_is_sent_all_of_it(folder, sums):
    grid = secret_federation(folder / "run", train__epochs=3.0, **SIX | {"download__grid": "steps"})

    def lose(message, reply):
        if phase_of(message) == 4:
            (folder / "state" / "client-3.safetensors").unlink(missing_ok=True)
        return reply

    grid.nodes[103].behave = lose
    result = train(grid)
    sums.check()
    assert counts(result)["resent"] == counts(result)["lost"] == 1
    assert counts(result)["replies"] == 18
    assert result["wire_upload_bytes"] == counts(result)["received_bytes"]


def test_an_answer_that_comes_late_is_dropped_and_counted(folder, sums):
    grid = secret_federation(folder / "run", **SIX)

    def slow(message, reply):
        grid.nodes[103].delay = 12 if phase_of(message) == 1 else 0
        return reply

    grid.nodes[103].behave = slow
    grid.run_config["train.epochs"] = 4.0
    result = train(grid)
    sums.check()
    assert counts(result)["late"] >= 1
    assert counts(result)["silent"] >= 1
    assert all(len(clients) >= 5 for clients in sums.clients)


def test_spares_are_in_the_sum(folder, sums):
    grid = secret_federation(folder / "run", federation__oversample=1.5)
    result = train(grid)
    sums.check()
    assert counts(result)["replies"] == 9
    assert len(sums.clients[0]) == 9


def test_a_mean_that_is_far_too_long_is_not_applied(folder, sums, monkeypatch, caplog):
    """Nobody knows whose vector it was: the round is done again, with others first."""
    grid = secret_federation(
        folder / "run", "uncompressed", train__epochs=2.5, upload__sum_bits=16,
        upload__sum_step=1e-3,
    )  # fmt: skip
    compute = work.compute

    def exaggerated(setup, weights, client, round, rate, kept):
        found = compute(setup, weights, client, round, rate, kept)
        if round == 4 and len(sums.places) == 5:
            return replace(found, vector=1000 * found.vector)
        return found

    monkeypatch.setattr(work, "compute", exaggerated)
    with caplog.at_level("WARNING", "flwr.fetchsgd"):
        result = train(grid)
    assert counts(result)["refused_steps"] == 1
    assert "round 4, try 1 is refused: the norm of the mean of the replies is" in caplog.text
    assert sums.places[-2:] == [(4, 0), (4, 1)]
    assert not set(sums.clients[-1]) & set(sums.clients[-2])
    assert counts(result)["replies"] == 30
    assert json.loads((folder / "run" / "secure.json").read_text())["attempt"] == 1
