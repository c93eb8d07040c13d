"""Whole federations without processes: what the server does with clients that are dishonest."""

import json
import math

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.fakegrid import Unreadable
from flower.federations import (
    counts,
    federation,
    header,
    lines,
    only_training,
    train,
    train_until_killed,
    weights,
)
from flwr.app import Array, ArrayRecord

from fetchsgd.errors import DivergedError, UserError
from fetchsgd.flower.admission import Admission
from fetchsgd.flower.protocol import PAYLOAD, STYPE, WIRE
from fetchsgd.flower.settings import read_settings
from fetchsgd.runs.setup import Setup
from fetchsgd.wire import Floats, SketchTable, decode, encode


def with_payload(reply, payload):
    reply.content[PAYLOAD] = ArrayRecord(
        {WIRE: Array(dtype="uint8", shape=(len(payload),), stype=STYPE, data=payload)}
    )
    return reply


def changed(change):
    """A client that changes its own sketch before it sends it."""

    def behave(message, reply):
        if message.metadata.message_type == "query":
            return reply
        found = decode(reply.content[PAYLOAD][WIRE].data)
        return with_payload(reply, encode(change(found)))

    return behave


def table(found, values=None, **more):
    fields = {name: getattr(found, name) for name in found.__dataclass_fields__} | more
    if values is not None:
        fields["values"] = Floats(values)
    return SketchTable(**fields)


def as_numpy(reply):
    reply.content[PAYLOAD] = ArrayRecord({WIRE: Array(np.ones(3))})
    return reply


def bare(reply):
    del reply.content[PAYLOAD]
    return reply


BAD = {
    "random bytes": (
        "undecodable",
        only_training(lambda reply: with_payload(reply, np.random.default_rng(0).bytes(200))),
    ),
    "nothing": ("undecodable", only_training(lambda reply: with_payload(reply, b""))),
    "a numpy array": ("undecodable", only_training(as_numpy)),
    "no payload": ("header", only_training(bare)),
    "very long": ("shape", only_training(lambda reply: with_payload(reply, bytes(10**6)))),
    "nan": ("not_finite", changed(lambda t: table(t, t.values.values * float("nan")))),
    "infinity": ("not_finite", changed(lambda t: table(t, t.values.values + float("inf")))),
    "1e30": ("norm", changed(lambda t: table(t, torch.full((40,), 1e30)))),
    "another shape": (
        "shape",
        changed(lambda t: table(t, torch.zeros(80), rows=2)),
    ),
    "another seed": ("seed", changed(lambda t: table(t, seed=9))),
    "another round": ("round", changed(lambda t: table(t, round=77))),
    "a header of another round": ("round", header("round", 77)),
    "another version's lineage": ("round", header("lineage", "0123")),
    "another client": ("round", header("client", 5)),
    "other settings": ("settings", header("digest", "0123")),
    "a loss that is nan": ("not_finite", header("loss", float("nan"))),
    "no round": ("header", header("round", "one")),
    "another protocol": ("header", header("protocol", 99)),
    "too many examples": ("examples", header("examples", 10**12)),
    "no examples": ("examples", header("examples", 0)),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_reply_is_rejected_and_the_round_goes_on(name, tmp_path, caplog):
    reason, behave = BAD[name]
    grid = federation(tmp_path / "run", train__clients_per_round=6, train__epochs=1.0)
    grid.nodes[103].behave = behave
    result = train(grid)
    assert result["status"] == "finished"
    assert counts(result)[f"rejected_{reason}"] >= 1
    assert counts(result)["replies"] == 12  # others were asked instead
    assert f"client 3 is rejected in round 0 ({reason})" in caplog.text or (
        f"client 3 is rejected in round 1 ({reason})" in caplog.text
    )
    last = lines(tmp_path / "run")[-1]
    assert last[f"federation/rejected_{reason}"] == last["federation/rejected"] >= 1
    assert bool(weights(tmp_path / "run").isfinite().all())


@pytest.mark.parametrize("hostile", [0, 5, 11])
def test_a_reply_that_flower_cannot_read_takes_no_other_reply_with_it(hostile, tmp_path, caplog):
    grid = federation(tmp_path / "run", train__clients_per_round=12, train__epochs=2.0)
    grid.nodes[100 + hostile].behave = only_training(lambda _: Unreadable())
    result = train(grid)
    assert result["status"] == "finished"
    assert counts(result)["rejected_unreadable"] == 2
    assert counts(result)["replies"] == 2 * 11
    assert counts(result)["silent"] == counts(result)["failed"] == 0
    rejected = [r.getMessage() for r in caplog.records if "is rejected" in r.getMessage()]
    assert all(f"client {hostile} is rejected in round" in line for line in rejected)
    assert not any("\n" in line for line in rejected)  # nor does it write lines of its own


def test_a_node_whose_introduction_cannot_be_read_is_named(tmp_path, caplog):
    grid = federation(tmp_path / "run", train__clients_per_round=6)
    grid.nodes[103].behave = lambda *_: Unreadable()
    result = train(grid)
    assert counts(result)["joined"] == 11
    assert counts(result)["rejected_unreadable"] >= 1
    assert "node 103 does not say who it is" in caplog.text


LIES = {
    "a million times as long": changed(lambda t: table(t, t.values.values * 1e6)),
    "half of its rows huge": changed(
        lambda t: table(t, t.values.values * torch.tensor([1e6, 1.0]).repeat_interleave(40))
    ),
    "a loss of 1e308": header("loss", 1e308),
    "a million examples": header("examples", 10**6),
}


def with_a_lie(folder, name, liars=(103,), **more):
    more = {
        "settings": "method.rows=2", "train__averaging": "examples", "train__clients_per_round": 12,
    } | more  # fmt: skip
    train(federation(folder / "clean", **more))
    grid = federation(folder / "run", **more)
    for node in liars:
        grid.nodes[node].behave = LIES[name]
    return train(grid)


@pytest.mark.parametrize("name", LIES)
def test_a_lie_leaves_hardly_a_trace(name, tmp_path, caplog):
    result = with_a_lie(tmp_path, name)
    assert result["status"] == "finished"
    assert counts(result)["replies"] >= 3 * 11  # no honest reply is lost
    assert "client 3 " in "".join(
        r.getMessage() for r in caplog.records if r.levelname == "WARNING"
    )
    away = (weights(tmp_path / "run") - weights(tmp_path / "clean")).norm()
    moved = (weights(tmp_path / "clean") - origin(tmp_path)).norm()
    assert away < moved
    for line in (*lines(tmp_path / "run"), result):
        assert math.isfinite(line["train_loss"])
        assert line["train_loss"] < 70


def origin(folder):
    grid = federation(folder / "origin")
    return Setup(read_settings(grid.run_config)[0]).origin


def test_a_long_reply_is_rejected_whichever_way_it_is_long(tmp_path):
    for name in ("a million times as long", "half of its rows huge"):
        result = with_a_lie(tmp_path / name, name)
        assert counts(result)["rejected_norm"] == 3
        assert counts(result)["replies"] == 3 * 11


def test_a_long_reply_is_rejected_when_it_comes_first(tmp_path):
    """The server has nothing to compare it with yet, and waits."""
    grid = federation(tmp_path / "run", train__clients_per_round=12, train__epochs=1.0)
    for number, node in grid.nodes.items():
        node.delay = 0 if number == 103 else 2
    grid.nodes[103].behave = LIES["a million times as long"]
    result = train(grid)
    assert counts(result)["rejected_norm"] == 1
    assert counts(result)["replies"] == 11


def test_losses_of_liars_do_not_end_a_run(tmp_path):
    result = with_a_lie(tmp_path, "a loss of 1e308", liars=range(104, 108))
    assert result["status"] == "finished"
    assert counts(result)["bounded_losses"] == 3 * 4
    assert json.loads((tmp_path / "run" / "result.json").read_text())["train_loss"] < 70


def test_examples_that_are_claimed_count_only_so_far(tmp_path, caplog):
    result = with_a_lie(tmp_path, "a million examples", federation__examples_factor=2.0)
    assert counts(result)["capped_examples"] >= 3
    assert "client 3 claims 1000000 examples in round 0 and counts as" in caplog.text


def test_honest_clients_lose_no_reply(tmp_path):
    result = train(federation(tmp_path / "run", train__epochs=20.0))
    found = counts(result)
    assert found["replies"] == found["asked"]
    assert found["rejected_norm"] == found["refused_steps"] == found["bounded_losses"] == 0
    last = lines(tmp_path / "run")[-1]
    assert 0 < last["federation/median_norm"] <= last["federation/largest_norm"]
    assert last["federation/step_norm"] <= last["federation/largest_norm"]


def swollen(grid, factor, since):
    """Everybody's replies grow at once, some time in training: within each round they agree."""
    longer = changed(lambda t: table(t, t.values.values * factor))
    for node in grid.nodes.values():
        node.behave = lambda message, reply: (
            longer(message, reply) if int(message.metadata.group_id) >= since else reply
        )


def test_a_wild_step_is_refused_and_nothing_of_it_is_applied(tmp_path, caplog):
    """A bound for replies lets the first few of a round pass; their mean is stopped."""
    grid = federation(tmp_path / "run", clients=range(4), federation__clients=4, train__epochs=9.0)
    real = Admission.decide
    swollen(grid, 1e4, since=5)

    def trusting(self, is_closing=False):
        self.norm_factor, factor = 0.0, self.norm_factor
        decisions = real(self, is_closing)
        self.norm_factor = factor
        return decisions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Admission, "decide", trusting)
        with pytest.raises(
            DivergedError, match="round 5 was refused 3 times: the norm of the mean"
        ):
            train(grid)
    assert "round 5, attempt 1 is refused" in caplog.text
    assert "norms of the replies by client: " in caplog.text
    assert [line["round"] for line in lines(tmp_path / "run")] == [1, 2, 3, 4, 5]
    assert bool(weights(tmp_path / "run").isfinite().all())
    # With honest clients the same command continues.
    again = federation(tmp_path / "run", clients=range(4), federation__clients=4, train__epochs=9.0)
    assert train(again)["status"] == "finished"


def test_a_resumed_server_remembers_how_long_replies_were(tmp_path):
    more = {"train__clients_per_round": 12, "train__epochs": 6.0}
    train_until_killed(federation(tmp_path / "run", **more), 4)
    known = lines(tmp_path / "run")[-1]["federation/reference_norm"]
    assert known > 0
    grid = federation(tmp_path / "run", **more)
    tiny = changed(lambda t: table(t, t.values.values * 1e-6))
    for number, node in grid.nodes.items():
        node.behave = None if number == 103 else tiny
    result = train(grid)
    assert counts(result)["rejected_norm"] == 0
    assert lines(tmp_path / "run")[-1]["federation/reference_norm"] == known


def test_clipping_takes_the_power_from_a_long_reply(tmp_path):
    more = {
        "train__clients_per_round": 12, "train__epochs": 4.0, "federation__norm_factor": 0.0,
    }  # fmt: skip
    distances = {}
    for clip in (0.0, 1.0):
        train(federation(tmp_path / f"clean{clip}", **more, federation__clip_norm=clip))
        grid = federation(tmp_path / f"bad{clip}", **more, federation__clip_norm=clip)
        grid.nodes[103].behave = changed(lambda t: table(t, t.values.values * -100))
        assert counts(train(grid))["rejected_norm"] == 0
        away = weights(tmp_path / f"bad{clip}") - weights(tmp_path / f"clean{clip}")
        distances[clip] = float(away.norm())
    assert distances[1.0] < 0.1 * distances[0.0]


def test_who_is_rejected_again_and_again_is_asked_less_and_less(tmp_path, caplog):
    """In rounds 0 to 2, then in 4, 7 and 12: pauses of 1, 2, 4 and 8 rounds."""
    grid = federation(tmp_path / "run", train__clients_per_round=12, train__epochs=16.0)
    asked = []

    def lie(message, reply):
        asked.append(int(message.metadata.group_id))
        return changed(lambda t: table(t, t.values.values * float("nan")))(message, reply)

    grid.nodes[103].behave = lie
    result = train(grid)
    assert asked[1:] == [0, 1, 2, 4, 7, 12]  # after its introduction
    assert counts(result)["rejected_not_finite"] == 6
    assert counts(result)["left_out"] == 4
    assert "client 3 has been rejected 3 times in a row and is not asked for 1 round" in caplog.text
    assert (
        "client 3 has been rejected 4 times in a row and is not asked for 2 rounds" in caplog.text
    )


def test_a_client_that_is_honest_again_is_asked_as_before(tmp_path):
    grid = federation(tmp_path / "run", train__clients_per_round=12, train__epochs=8.0)
    bad = changed(lambda t: table(t, t.values.values * float("nan")))
    grid.nodes[103].behave = lambda message, reply: (
        bad(message, reply) if int(message.metadata.group_id) < 3 else reply
    )
    result = train(grid)
    assert counts(result)["rejected_not_finite"] == 3
    assert counts(result)["replies"] == 8 * 11 + 4  # from round 4 on


def test_where_nobody_else_is_left_the_rejected_are_asked(tmp_path):
    grid = federation(
        tmp_path / "run", clients=range(3), federation__clients=3, train__clients_per_round=3,
        train__epochs=2.0, federation__min_replies=3, federation__attempts=5,
        federation__deadline=2.0,
    )  # fmt: skip
    bad, lies = changed(lambda t: table(t, t.values.values * float("nan"))), []

    def lie_thrice(message, reply):
        if message.metadata.message_type == "query" or len(lies) == 3:
            return reply
        lies.append(message)
        return bad(message, reply)

    grid.nodes[102].behave = lie_thrice
    result = train(grid)
    assert counts(result)["rejected_not_finite"] == 3
    assert counts(result)["left_out"] == 1
    assert counts(result)["replies"] == 2 * 3


@pytest.mark.parametrize("factor", [float("nan"), 1e6])
def test_a_rejected_client_is_not_sent_work_twice(factor, tmp_path):
    """What it holds is known, though its reply does not count: on a grid of steps that matters."""
    grid = federation(
        tmp_path / "run", train__clients_per_round=12, train__epochs=8.0, download__grid="steps"
    )
    bad = changed(lambda t: table(t, t.values.values * factor))
    grid.nodes[103].behave = lambda message, reply: (
        bad(message, reply) if message.metadata.group_id in ("1", "2", "5") else reply
    )
    result = train(grid)
    assert counts(result)["rejected_norm"] + counts(result)["rejected_not_finite"] == 3
    assert counts(result)["resent"] == counts(result)["lost"] == 0
    assert counts(result)["asked"] == 8 * 12


@pytest.mark.parametrize("rule", ["trimmed", "filtered"])
def test_what_no_bound_on_norms_stops_is_left_to_robust_merging(rule, tmp_path):
    """Three of twelve send eight times the opposite of what they should, in every round."""
    away = {}
    backwards = changed(lambda t: table(t, -8 * t.values.values))
    for name in ("mean", rule):
        more = {
            "train__clients_per_round": 12, "train__epochs": 4.0,
            "settings": f"merge.name={name}",
        }  # fmt: skip
        train(federation(tmp_path / f"clean-{name}", **more))
        grid = federation(tmp_path / f"bad-{name}", **more)
        for node in (101, 105, 109):
            grid.nodes[node].behave = backwards
        assert counts(train(grid))["rejected_norm"] == 0
        found = weights(tmp_path / f"bad-{name}") - weights(tmp_path / f"clean-{name}")
        away[name] = float(found.norm())
    assert away[rule] < 0.3 * away["mean"]
    assert "merge/shortened" in lines(tmp_path / f"bad-{rule}")[-1]


def test_liars_of_a_federation_are_real(tmp_path):
    with pytest.raises(UserError, match="those of a federation are real"):
        train(federation(tmp_path / "run", attack__name="flip"))
