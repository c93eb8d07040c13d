"""Parts from outside the package in a federation: as in the simulator, and safe from liars."""

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.federations import (
    counts,
    federation,
    only_training,
    train,
    train_until_killed,
    weights,
)
from flwr.app import Array, ArrayRecord
from outside.settings import GIVEN
from outside.ternary import Trits
from safetensors.torch import load_file

from fetchsgd.flower.protocol import PAYLOAD, STYPE, WIRE, payload_of
from fetchsgd.flower.settings import read_settings
from fetchsgd.report.runs import load_run
from fetchsgd.runs.checkpoint import FILE
from fetchsgd.simulation import Run
from fetchsgd.wire import DenseVector, Floats, SparseUpdate, decode, encode

FLAT = {
    f"{section}__{key}": value
    for section in ("method", "upload", "download")
    for key, value in GIVEN[section].items()
}
NAME = FLAT.pop("method__name")


def ours(out, **more):
    return federation(out, NAME, **(FLAT | more))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"method__keep": True},
        {"settings": "upload.quantiser=bits download.grid=float32"},
        {"settings": "local.epochs=2"},
    ],
    ids=str,
)
def test_the_federation_trains_as_the_simulator_does(more, tmp_path):
    grid = ours(tmp_path / "real", **more)
    result = train(grid)
    config, _ = read_settings(grid.run_config)
    expected = Run(config).execute(tmp_path / "simulated")
    torch.testing.assert_close(
        weights(tmp_path / "real"), weights(tmp_path / "simulated"), rtol=1e-4, atol=1e-6
    )
    for way in ("upload_bytes", "download_bytes"):
        assert result[way] == expected[way]
        assert result[f"wire_{way}"] == pytest.approx(expected[f"wire_{way}"], rel=0.01)
    assert counts(result)["replies"] == 36
    assert counts(result)["resent"] == 0
    run = load_run(tmp_path / "real")
    assert (run.status, run.method) == ("finished", NAME)


def test_measured_bytes_are_those_of_the_ledger(tmp_path):
    """To the byte: this quantiser and this grid know their sizes."""
    result = train(ours(tmp_path / "run"))
    assert counts(result)["received_bytes"] == result["wire_upload_bytes"]
    assert counts(result)["sent_bytes"] == result["wire_download_bytes"]


@pytest.mark.parametrize("keep", [False, True])
def test_resumed_equals_uninterrupted(keep, tmp_path):
    train(ours(tmp_path / "whole", method__keep=keep))
    grid = ours(tmp_path / "cut", method__keep=keep)
    train_until_killed(grid, 6)
    train(grid)
    whole, cut = (load_file(tmp_path / name / FILE) for name in ("whole", "cut"))
    assert torch.equal(whole["steps"], cut["steps"])


def test_a_client_that_lost_what_it_held_gets_everything(tmp_path):
    grid = ours(tmp_path / "run")
    losses = [0]

    def lose():
        losses[0] += 1
        if losses[0] == 5:
            for node in grid.nodes:
                grid.lose_state(node)

    grid.before_look = lose
    result = train(grid)
    assert counts(result)["resent"] > 0
    train(ours(tmp_path / "whole"))
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "whole"))


def lies(change):
    """Client 0 changes its payload before it sends it."""

    def behave(reply):
        data = change(decode(payload_of(reply.content)))
        array = Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)
        reply.content[PAYLOAD] = ArrayRecord({WIRE: array})
        return reply

    return only_training(behave)


def trits(count, scale=1.0):
    return Trits(scale, torch.ones(count, dtype=torch.int8))


def damaged(sent):
    """A byte that is no five digits of base 3, under a checksum that is right."""
    message = Trits(1.0, sent.values.trits)
    object.__setattr__(message, "write", lambda coding: bytes(4) + b"\xff" * 6)  # noqa: ARG005
    return encode(DenseVector(message, sent.round))


LIES = {
    "a coordinate more": ("shape", lambda sent: encode(DenseVector(trits(31), sent.round))),
    "a coordinate less": ("shape", lambda sent: encode(DenseVector(trits(29), sent.round))),
    "places of its own": (
        "shape",
        lambda sent: encode(SparseUpdate(75, torch.arange(30), sent.values, sent.round)),
    ),
    "another round": ("round", lambda sent: encode(DenseVector(sent.values, sent.round + 1))),
    "another quantiser": (
        "shape",
        lambda sent: encode(DenseVector(Floats(sent.values.floats().half()), sent.round)),
    ),
    "floats": ("shape", lambda sent: encode(DenseVector(Floats(torch.ones(30)), sent.round))),
    "not ternary": ("undecodable", damaged),
    "an infinite scale": (
        "undecodable",
        lambda sent: encode(DenseVector(trits(30, float("inf")), sent.round)),
    ),
    "a huge scale": ("norm", lambda sent: encode(DenseVector(trits(30, 1e30), sent.round))),
}


@pytest.mark.parametrize("name", LIES)
def test_what_no_honest_client_sends_is_rejected(name, tmp_path):
    """And training goes on as if that client had not been there."""
    reason, change = LIES[name]
    waits = {"federation__deadline": 5.0, "federation__min_replies": 1}
    everyone = {"train__clients_per_round": 4, "federation__clients": 4} | waits
    grid = ours(tmp_path / "run", clients=range(1, 4), **everyone)
    grid.add(0, behave=lies(change))
    result = train(grid)
    assert result["status"] == "finished"
    assert counts(result)[f"rejected_{reason}"] == result["rounds"]
    honest = ours(tmp_path / "honest", clients=range(1, 4), **everyone)
    train(honest)
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "honest"))
