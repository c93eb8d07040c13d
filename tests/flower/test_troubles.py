"""Whole federations without processes: clients that are silent, late, lost, or twice there."""

import json

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.federations import at_look, counts, federation, only_training, train, weights
from flwr.app import Array

from fetchsgd.errors import UserError
from fetchsgd.flower.protocol import HEADER


def test_lost_state_is_asked_for_and_comes_in_one_message(tmp_path):
    grid = federation(tmp_path / "run", train__clients_per_round=12, train__epochs=6.0)
    clean = train(federation(tmp_path / "clean", train__clients_per_round=12, train__epochs=6.0))
    at_look(grid, 4, lambda: grid.lose_state(103))
    result = train(grid)
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "clean"))
    assert counts(result)["resent"] == counts(result)["lost"] == 1
    assert counts(clean)["resent"] == 0
    asked = [kind for node, kind in grid.kinds if node == 103]
    assert asked.count("train") == 6 + 1


def test_damaged_weights_are_noticed(tmp_path):
    grid = federation(tmp_path / "run", train__clients_per_round=12, train__epochs=6.0)

    def damage():
        state = grid.nodes[103].context.state
        if state.array_records and state["fetchsgd.about"]["version"] == 2:
            vectors = state.array_records["fetchsgd.vectors"]
            vectors["held"] = Array(vectors["held"].numpy() + 1)
            grid.before_look = None

    grid.before_look = damage
    result = train(grid)
    assert counts(result)["lost"] == 1
    assert counts(result)["replies"] == 72


def test_half_of_all_clients_are_silent(tmp_path):
    """The other half trains on; the silent ones are not asked again and again."""
    more = {"train__clients_per_round": 6, "train__epochs": 6.0, "federation__deadline": 10.0}
    grid = federation(tmp_path / "run", **more, federation__oversample=2.0)
    for node in list(grid.nodes)[::2]:
        grid.nodes[node].behave = only_training(lambda _: None)
    result = train(grid)
    assert result["status"] == "finished"
    assert counts(result)["replies"] == 12 * 6
    assert counts(result)["silent"] >= 6
    assert counts(result)["too_few"] == 0
    assert grid.time < 60


def test_late_replies_are_counted_and_dropped(tmp_path):
    more = {"train__clients_per_round": 6, "federation__oversample": 1.5}
    grid = federation(tmp_path / "run", **more)
    for node in (100, 101):
        grid.nodes[node].delay = 1
    clean = train(federation(tmp_path / "clean", **more))
    result = train(grid)
    assert counts(result)["late"] >= 1
    assert counts(result)["replies"] + counts(result)["late"] <= counts(result)["asked"]
    assert counts(clean)["late"] == 0


def test_a_late_reply_tells_what_the_client_holds(tmp_path):
    """On a grid of steps its next update must begin just there.

    Else it asks for another one, which takes a message more, and makes it late again.
    """
    more = {"train__clients_per_round": 6, "train__epochs": 6.0, "federation__oversample": 1.5}
    grid = federation(tmp_path / "run", **more, download__grid="steps")

    def be_slow_once():
        for node in (100, 101, 102):
            grid.nodes[node].delay = int(1.0 < grid.time < 1.4)

    grid.before_look = be_slow_once
    result = train(grid)
    assert counts(result)["late"] == 2
    assert counts(result)["resent"] == counts(result)["lost"] == 0
    assert counts(result)["replies"] == counts(result)["asked"] - 2


def test_too_few_replies_are_waited_for_and_then_the_run_ends_with_a_sentence(tmp_path):
    more = {"federation__min_replies": 4, "federation__deadline": 5.0}
    grid = federation(tmp_path / "run", **more)
    for node in grid.nodes.values():
        node.behave = only_training(lambda _: None)
    with pytest.raises(UserError, match="round 0 had 0 replies after 3 deadlines of 5 s"):
        train(grid)
    assert train(federation(tmp_path / "run", **more))["status"] == "finished"


def test_a_slow_cohort_is_asked_again_and_duplicates_are_dropped(tmp_path):
    """Everybody is slower than the deadline; a node that restarts is asked twice."""
    grid = federation(
        tmp_path / "run", clients=range(4), federation__clients=4, federation__deadline=5.0,
        federation__min_replies=4, train__epochs=1.0, federation__attempts=9,
    )  # fmt: skip
    for node in grid.nodes.values():
        node.delay = 12
    restarted = []

    def restart():
        if not restarted and grid.time > 4 and any(k == "train" for _, k in grid.kinds):
            restarted.append(grid.add(0, delay=1))

    grid.before_look = restart
    result = train(grid)
    assert counts(result)["too_few"] >= 1
    assert counts(result)["joined"] == 5
    assert counts(result)["replies"] == 4


def test_the_second_reply_of_a_client_is_counted_and_dropped(tmp_path):
    """Its node restarts in the middle of a round: both of them are asked, and both reply."""
    more = {"federation__clients": 4, "train__epochs": 1.0}
    clean = train(federation(tmp_path / "clean", clients=range(4), **more))
    grid = federation(tmp_path / "run", clients=range(4), **more)
    for node, delay in zip(grid.nodes.values(), (15, 30, 30, 30), strict=True):
        node.delay = delay
    restarted = []

    def restart():
        if not restarted and any(kind == "train" for _, kind in grid.kinds):
            restarted.append(grid.add(0))

    grid.before_look = restart
    result = train(grid)
    assert counts(result)["duplicate"] == 1
    assert counts(result)["replies"] == 4
    assert counts(result)["asked"] == 5
    assert counts(clean)["duplicate"] == 0
    torch.testing.assert_close(
        weights(tmp_path / "run"), weights(tmp_path / "clean"), rtol=0, atol=1e-7
    )


def test_two_nodes_with_one_number_are_told_and_the_last_one_counts(tmp_path, caplog):
    more = {"federation__clients": 4, "train__epochs": 40.0, "federation__deadline": 5.0}
    grid = federation(tmp_path / "run", clients=[0, 1, 2, 3, 3], **more)

    def leave():
        grid.nodes[104].online = False

    at_look(grid, 20, leave)
    result = train(grid)
    assert counts(result)["same_client"] == 1
    assert "node 104 says that it is client 3, as node 103 does" in caplog.text
    trained = [node for node, kind in grid.kinds if kind == "train"]
    assert trained.count(104) > 0
    # The other one takes over as soon as the last one is gone.
    assert trained.count(103) > 0
    assert trained.index(103) > len(trained) - 1 - trained[::-1].index(104)
    assert counts(result)["joined"] == 6
    assert counts(result)["left"] == 1
    assert counts(result)["duplicate"] == 0


def test_a_client_cannot_hold_what_there_is_not_yet(tmp_path):
    """Whoever says so gets everything."""
    grid = federation(tmp_path / "run", clients=range(4), federation__clients=4)

    def boast(message, reply):
        if message.metadata.message_type == "query":
            lineage = json.loads((tmp_path / "run" / "federation.json").read_text())["lineage"]
            reply.content[HEADER]["held"] = 10**9
            reply.content[HEADER]["lineage"] = lineage
        return reply

    grid.nodes[103].behave = boast
    result = train(grid)
    assert counts(result)["replies"] == 12
    assert counts(result)["failed"] == 0


def test_a_node_that_leaves_and_returns(tmp_path):
    more = {"train__clients_per_round": 12, "train__epochs": 30.0, "federation__deadline": 6.0}
    grid = federation(tmp_path / "run", **more)
    looks = [0]

    def leave():
        looks[0] += 1
        if looks[0] == 5:
            grid.nodes[103].online = False
        if looks[0] == 40:
            grid.nodes[103].online = True

    grid.before_look = leave
    result = train(grid)
    assert counts(result)["left"] == 1
    assert counts(result)["joined"] == 13
    assert 360 - 30 < counts(result)["replies"] < 360
    assert result["status"] == "finished"


def test_nobody_is_there(tmp_path):
    grid = federation(tmp_path / "run", clients=[], federation__wait=10.0)
    with pytest.raises(UserError, match="0 clients are connected after federation.wait = 10 s"):
        train(grid)


def test_a_node_without_a_number_is_told_how(tmp_path, caplog):
    grid = federation(tmp_path / "run")
    node = grid.add(99)
    del grid.nodes[node].context.node_config["partition-id"]
    train(grid)
    assert "partition-id must be a client's number" in caplog.text
