"""Whole federations without processes: what the server does with clients that are dishonest."""

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.federations import counts, federation, header, lines, only_training, train, weights
from flwr.app import Array, ArrayRecord

from fetchsgd.flower.protocol import PAYLOAD, STYPE, WIRE
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
