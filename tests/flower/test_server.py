"""Whole federations without processes: what real clients would do, and what dishonest ones do."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.fakegrid import FakeGrid
from flwr.app import Array, ArrayRecord

from fetchsgd.errors import UserError
from fetchsgd.flower.protocol import HEADER, PAYLOAD, STYPE, WIRE
from fetchsgd.flower.run import FederatedRun
from fetchsgd.flower.server import federate
from fetchsgd.flower.settings import read_settings
from fetchsgd.report.runs import load_run
from fetchsgd.simulate import Run
from fetchsgd.simulate.checkpoint import FILE
from fetchsgd.wire import Floats, SketchTable, decode, encode


def config(out, method="fetchsgd", **more):
    given = {"task.name": "tinytask:tiny", "method.name": method, "federation.out": str(out)}
    return given | {name.replace("__", "."): value for name, value in more.items()}


def federation(out, method="fetchsgd", clients=range(12), **more):
    grid = FakeGrid(config(out, method, **more))
    for client in clients:
        grid.add(client)
    return grid


def train(grid):
    settings, ours = read_settings(grid.run_config)
    return federate(grid, FederatedRun(settings, ours.clients), ours, grid.clock)


def simulated(grid, out):
    settings, _ = read_settings(grid.run_config)
    return Run(settings).execute(out)


def weights(folder):
    return load_file(folder / FILE)["weights"]


def counts(result):
    return result["federation"]["counts"]


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


CASES = [
    ("fetchsgd", {}),
    ("fetchsgd", {"upload__bits": 2, "download__grid": "steps"}),
    ("fetchsgd", {"upload__bits": 16, "train__averaging": "examples"}),
    ("fetchsgd", {"settings": "local.epochs=2 download.log=2", "download__grid": "steps"}),
    ("uncompressed", {"upload__bits": 8, "download__grid": "float16"}),
    ("fedavg", {"settings": "local.epochs=2"}),
    ("true_topk", {"upload__bits": 4}),
    ("local_topk", {"upload__bits": 32}),
    ("local_topk", {"upload__bits": 4, "settings": "local_error=true local_momentum=0.5"}),
]


@pytest.mark.parametrize(("method", "more"), CASES, ids=str)
def test_the_federation_trains_as_the_simulator_does(method, more, tmp_path):
    """Weights agree but for the order of additions; the ledger agrees exactly, but for rounding."""
    grid = federation(tmp_path / "real", method, **more)
    result = train(grid)
    expected = simulated(grid, tmp_path / "simulated")
    assert result["rounds"] == expected["rounds"] == 9
    torch.testing.assert_close(
        weights(tmp_path / "real"), weights(tmp_path / "simulated"), rtol=1e-4, atol=1e-6
    )
    for way in ("upload_bytes", "download_bytes"):
        assert result[way] == expected[way]
        assert result[f"wire_{way}"] == pytest.approx(expected[f"wire_{way}"], rel=0.01, abs=20)
    assert counts(result)["replies"] == 36
    assert counts(result)["resent"] == 0


def test_the_first_download_is_a_difference(tmp_path):
    grid = federation(tmp_path / "run")
    result = train(grid)
    # Three rounds before anybody comes back: what the first clients get is next to nothing.
    assert lines(tmp_path / "run")[0]["measured_download_bytes"] < 4 * 100
    assert counts(result)["lost"] == 0


def test_measured_bytes_are_those_of_the_ledger(tmp_path):
    result = train(federation(tmp_path / "run", download__grid="steps", upload__bits=4))
    last = lines(tmp_path / "run")[-1]
    assert last["measured_upload_bytes"] == counts(result)["received_bytes"]
    # Tiny messages: the ledger's sizes are means, within some bytes a message.
    for way in ("upload", "download"):
        difference = last[f"measured_{way}_bytes"] - last[f"wire_{way}_bytes"]
        assert abs(difference) < 8 * 36


def test_the_report_reads_the_folder(tmp_path):
    train(federation(tmp_path / "run"))
    run = load_run(tmp_path / "run")
    assert run.status == "finished"
    assert [point.round for point in run.curve] == list(range(1, 10))
    assert sum(point.metric is not None for point in run.curve) == 3
    assert list((tmp_path / "run").glob("events.*"))


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("more", [{}, {"download__grid": "steps", "upload__bits": 2}], ids=str)
@pytest.mark.parametrize("looks", [1, 3, 6, 9])
def test_resumed_equals_uninterrupted(looks, more, tmp_path):
    """Killed at any time. Afterwards the nodes hold nothing: for Flower it is another run."""
    whole = train(federation(tmp_path / "whole", **more))
    grid = federation(tmp_path / "cut", **more)
    left = [looks]

    def kill():
        left[0] -= 1
        if left[0] < 0:
            raise KilledError

    grid.before_look = kill
    with pytest.raises(KilledError):
        train(grid)
    done = lines(tmp_path / "cut")[-1]["round"] if (tmp_path / "cut" / FILE).exists() else 0
    again = federation(tmp_path / "cut", **more)
    result = train(again)
    assert torch.equal(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert result["value"] == whole["value"]
    assert [line["round"] for line in lines(tmp_path / "cut")] == list(range(1, 10))
    assert counts(result)["resumed"] == (1 if done else 0)
    assert counts(result)["replies"] == 36  # no round is applied twice
    if done:
        assert counts(result)["joined"] == 24


def test_a_run_that_was_killed_at_its_very_end_keeps_its_result(tmp_path):
    first = train(federation(tmp_path / "run"))
    (tmp_path / "run" / "result.json").unlink()
    again = train(federation(tmp_path / "run"))
    assert again["value"] == first["value"]
    assert train(federation(tmp_path / "run")) == again  # it has ended


def test_two_servers_do_not_share_a_folder(tmp_path):
    grid = federation(tmp_path / "run")

    def intrude():
        grid.before_look = None
        with pytest.raises(UserError, match="another server, process [0-9]+, is training in"):
            train(federation(tmp_path / "run"))

    grid.before_look = intrude
    train(grid)


def test_lost_state_is_asked_for_and_comes_in_one_message(tmp_path):
    grid = federation(tmp_path / "run", train__clients_per_round=12, train__epochs=6.0)
    clean = train(federation(tmp_path / "clean", train__clients_per_round=12, train__epochs=6.0))
    looks = [0]

    def lose():
        looks[0] += 1
        if looks[0] == 8:
            grid.lose_state(103)

    grid.before_look = lose
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


def only_training(change):
    return lambda message, reply: (
        reply if message.metadata.message_type == "query" else change(reply)
    )


def header(name, value):
    def change(reply):
        reply.content[HEADER][name] = value
        return reply

    return only_training(change)


def as_numpy(reply):
    reply.content[PAYLOAD] = ArrayRecord({WIRE: Array(np.ones(3))})
    return reply


def bare(reply):
    del reply.content[PAYLOAD]
    return reply


BAD = {
    "random bytes": (
        "undecodable",
        only_training(lambda reply: with_payload(reply, np.random.default_rng(0).bytes(300))),
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


def test_a_client_that_exaggerates_its_loss_does_not_end_the_run(tmp_path):
    grid = federation(tmp_path / "run", train__clients_per_round=12)
    grid.nodes[103].behave = header("loss", 1e30)
    assert train(grid)["status"] == "finished"


def test_clipping_takes_the_power_from_a_long_reply(tmp_path):
    more = {"train__clients_per_round": 12, "train__epochs": 4.0}
    distances = {}
    for clip in (0.0, 1.0):
        train(federation(tmp_path / f"clean{clip}", **more, federation__clip_norm=clip))
        grid = federation(tmp_path / f"bad{clip}", **more, federation__clip_norm=clip)
        grid.nodes[103].behave = changed(lambda t: table(t, t.values.values * -100))
        assert counts(train(grid))["rejected_norm"] == 0
        away = weights(tmp_path / f"bad{clip}") - weights(tmp_path / f"clean{clip}")
        distances[clip] = float(away.norm())
    assert distances[1.0] < 0.1 * distances[0.0]


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


def test_replies_are_taken_by_the_handful(tmp_path):
    """So that memory does not grow with the cohort."""
    grid = federation(
        tmp_path / "run", "uncompressed", range(64), train__epochs=1.0,
        train__clients_per_round=64, settings="task.clients=64",
    )  # fmt: skip
    pulled = []
    real = grid.pull_messages
    grid.pull_messages = lambda names: pulled.append(len(names)) or real(names)
    assert counts(train(grid))["replies"] == 64
    assert max(pulled) == 8


def test_clients_may_hold_nothing_but_their_own_data(tmp_path):
    grid = federation(tmp_path / "run", clients=range(5), federation__clients=5)
    for node in grid.nodes.values():
        node.context.node_config["task.clients"] = 1
    result = train(grid)
    assert result["status"] == "finished"
    assert result["rounds"] == 6  # two for each of three epochs
    assert counts(result)["failed"] == counts(result)["resent"] == 0
