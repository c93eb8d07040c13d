"""Whole federations without processes: they train as the simulator does, also when killed."""

import gc
import json
import re
import socket
import weakref
from urllib.request import urlopen

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.federations import (
    counts,
    federation,
    header,
    lines,
    train,
    train_until_killed,
    weights,
)

from fetchsgd.errors import DivergedError, UserError
from fetchsgd.flower.events import Events
from fetchsgd.flower.settings import read_settings
from fetchsgd.methods import Delivered, Uncompressed
from fetchsgd.report.runs import load_run
from fetchsgd.runs.checkpoint import CHECKSUM, EARLIER, FILE, checksum_of, read_checkpoint
from fetchsgd.runs.status import read_status
from fetchsgd.simulation import Run


def test_a_damaged_name_of_the_run_is_told(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "federation.json").write_bytes(b'{"lineage": "ab\x9c')
    with pytest.raises(UserError, match=r"federation.json is damaged.* remove the file"):
        train(federation(tmp_path / "run"))


def simulated(grid, out):
    settings, _ = read_settings(grid.run_config)
    return Run(settings).execute(out)


# With a large eps: else a last bit of a gradient that is nearly zero makes a whole step.
ADAMW = "local.steps=3 local.optimizer=adamw local.state=keep local.eps=0.01 weight_decay=0.1"
OUTER = f"{ADAMW} momentum=0.9 local.outer_rate=0.7"
CASES = [
    ("fetchsgd", {}),
    ("fetchsgd", {"upload__bits": 2, "download__grid": "steps"}),
    ("fetchsgd", {"upload__bits": 16, "train__averaging": "examples", "method__hash": "fixed"}),
    ("fetchsgd", {"method__decode": "unbiased", "settings": "rows=3"}),
    ("fetchsgd", {"upload__quantiser": "shared_step", "settings": "density=1.0"}),
    ("true_topk", {"upload__quantiser": "shared_step", "settings": "density=0.5 revisit=2.0"}),
    ("fetchsgd", {"settings": "local.epochs=2 download.log=2", "download__grid": "steps"}),
    ("uncompressed", {"upload__bits": 8, "download__grid": "float16"}),
    ("fedavg", {"settings": "local.epochs=2"}),
    ("true_topk", {"upload__bits": 4}),
    ("fetchsgd", {"upload__bits": 4, "settings": "merge.name=filtered merge.groups=3"}),
    ("local_topk", {"settings": "merge.name=trimmed merge.clip=1.5"}),
    ("local_topk", {"upload__bits": 32}),
    ("local_topk", {"upload__bits": 4, "settings": "local_error=true local_momentum=0.5"}),
    ("fetchsgd", {"settings": f"{OUTER} nesterov=true"}),
    ("fetchsgd", {"settings": OUTER, "method__hash": "fixed"}),
    ("true_topk", {"settings": f"{OUTER} nesterov=true"}),
    ("local_topk", {"settings": f"{OUTER} nesterov=true local_error=true"}),
    ("fedavg", {"settings": f"{OUTER} nesterov=true"}),
    ("uncompressed", {"settings": f"{OUTER} nesterov=true"}),
    ("sparse_loco", {"upload__quantiser": "two_bits", "settings": f"{ADAMW} per_chunk=512"}),
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


def test_the_average_of_the_weights_is_the_simulators(tmp_path):
    grid = federation(tmp_path / "real", settings="average=0.8")
    result = train(grid)
    expected = simulated(grid, tmp_path / "simulated")
    assert result["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-4)
    real, wanted = (load_file(tmp_path / name / FILE) for name in ("real", "simulated"))
    torch.testing.assert_close(
        real["average.weights"], wanted["average.weights"], rtol=1e-4, atol=1e-6
    )


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


@pytest.mark.parametrize(
    "more",
    [{}, {"download__grid": "steps", "upload__bits": 2}, {"settings": "average=0.8"}],
    ids=str,
)
@pytest.mark.parametrize("looks", [1, 3, 6, 9])
def test_resumed_equals_uninterrupted(looks, more, tmp_path):
    """Killed at any time. Afterwards the nodes hold nothing: for Flower it is another run."""
    whole = train(federation(tmp_path / "whole", **more))
    grid = federation(tmp_path / "cut", **more)
    train_until_killed(grid, looks)
    done = lines(tmp_path / "cut")[-1]["round"] if (tmp_path / "cut" / FILE).exists() else 0
    again = federation(tmp_path / "cut", **more)
    result = train(again)
    expected, found = (load_file(tmp_path / name / FILE) for name in ("whole", "cut"))
    assert expected.keys() == found.keys()
    for name in expected:  # the ledger counts what it took to bring nodes back
        assert name.startswith("ledger.") or torch.equal(found[name], expected[name]), name
    assert result["value"] == whole["value"]
    assert [line["round"] for line in lines(tmp_path / "cut")] == list(range(1, 10))
    assert counts(result)["resumed"] == (1 if done else 0)
    assert counts(result)["replies"] == 36  # no round is applied twice
    if done:
        assert counts(result)["joined"] == 24


def test_a_checkpoint_of_before_replies_were_remembered_is_read(tmp_path):
    grid = federation(tmp_path / "run")
    train_until_killed(grid, 6)
    path = tmp_path / "run" / FILE
    saved = read_checkpoint(path.parent, torch.device("cpu"))
    assert any(name.startswith("replies.") for name in saved.tensors)
    older = {n: part for n, part in saved.tensors.items() if not n.startswith("replies.")}
    about = {name: text for name, text in saved.about.items() if name != CHECKSUM}
    path.write_bytes(save(older, about | {CHECKSUM: checksum_of(older, about)}))
    train(federation(tmp_path / "whole"))
    assert train(federation(tmp_path / "run"))["status"] == "finished"
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "whole"))


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
        with pytest.raises(UserError, match=r"another process \([0-9]+\) is training in"):
            train(federation(tmp_path / "run"))

    grid.before_look = intrude
    train(grid)


def test_replies_are_taken_one_by_one(tmp_path):
    """So that memory does not grow with the cohort: each is gone before the next is pulled."""
    grid = federation(
        tmp_path / "run", "uncompressed", range(8), train__epochs=1.0,
        train__clients_per_round=8, settings="task.clients=8",
    )  # fmt: skip
    pulled, most = [], [0]
    real = grid.pull_messages

    def pull(names):
        gc.collect()
        most[0] = max(most[0], sum(reference() is not None for reference in pulled))
        found = real(names)
        pulled.extend(weakref.ref(message.content) for message in found)
        return found

    grid.pull_messages = pull
    assert counts(train(grid))["replies"] == 8
    assert len(pulled) == 16
    assert most[0] <= 2


def test_clients_may_hold_nothing_but_their_own_data(tmp_path):
    grid = federation(tmp_path / "run", clients=range(5), federation__clients=5)
    for node in grid.nodes.values():
        node.context.node_config["task.clients"] = 1
    result = train(grid)
    assert result["status"] == "finished"
    assert result["rounds"] == 6  # two for each of three epochs
    assert counts(result)["failed"] == counts(result)["resent"] == 0


def test_a_run_that_diverges_leaves_a_checkpoint_from_before(tmp_path):
    """And says since when the loss has risen; what was kept is of a round before that."""
    points = "[[0, 0.01], [4, 0.01], [4.3, 1], [5, 10], [6, 100], [7, 1e3], [8, 1e4], [9, 1e6]]"
    more = {
        "train__epochs": 10.0, "train__clients_per_round": 12, "federation__norm_factor": 0.0,
        "settings": f"schedule.kind=piecewise 'schedule.points={points}'",
    }  # fmt: skip
    grid = federation(tmp_path / "run", "uncompressed", **more)
    with pytest.raises(
        DivergedError, match=r"rising since round (\d+).*checkpoint-earlier"
    ) as told:
        train(grid)
    since = int(re.search(r"since round (\d+)", str(told.value))[1])
    with safe_open(tmp_path / "run" / EARLIER, "pt") as file:
        assert int(file.metadata()["round"]) < since
        assert file.get_tensor("weights").isfinite().all()
    result = json.loads((tmp_path / "run" / "result.json").read_text(), parse_constant=pytest.fail)
    assert (result["status"], result["rising_since"]) == ("diverged", since)
    # Going back by hand: the earlier checkpoint in the place of the last, and no result.
    (tmp_path / "run" / EARLIER).rename(tmp_path / "run" / FILE)
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(DivergedError):
        train(grid)


def test_weights_that_are_not_finite_are_never_saved(tmp_path, monkeypatch):
    """Whatever a method makes of finite replies."""
    grid = federation(tmp_path / "run", "uncompressed")
    step = Uncompressed.step

    def poisoned(self, mean, state, *rest, **more):
        sent, after = step(self, mean, state, *rest, **more)
        bad = torch.full_like(sent.update, float("nan"))
        return (Delivered(bad), after) if len(lines(tmp_path / "run")) == 2 else (sent, after)

    monkeypatch.setattr(Uncompressed, "step", poisoned)
    with pytest.raises(DivergedError, match="a weight is no longer finite at round 3"):
        train(grid)
    assert weights(tmp_path / "run").isfinite().all()


def test_a_server_says_how_it_stands_while_a_round_is_open(tmp_path, caplog):
    """To Prometheus and to `fetchsgd status`, with a client that is rejected in every round."""
    caplog.set_level("INFO")
    pytest.importorskip("prometheus_client", reason="pip install 'fetchsgd[metrics]'")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    out, seen = tmp_path / "run", []
    grid = federation(out, clients=range(4), settings=f"federation.metrics_port={port}")
    grid.nodes[102].behave = header("examples", 0)

    def look():
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            seen.append((answer.read().decode(), read_status(out)))

    grid.before_look = look
    train(grid)
    text, status = seen[-1]
    assert (status.state, status.round, status.rounds) == ("training", 8, 9)
    counted = status.rejected["examples"]
    assert counted > 1
    assert status.rejected_by_client == {"2": {"examples": counted}}
    assert status.replies == 24
    assert set(status.phases) == {"waiting", "clients", "server", "recording"}
    assert "fetchsgd_rounds_total 8.0\n" in text
    # By then one more has been rejected than the last line knows of.
    rejected = float(re.search(r'client_rejections_total\{client="2"\} (\S+)', text).group(1))
    assert rejected >= counted
    done = read_status(out)
    assert (done.state, done.replies) == ("finished", 27)
    assert Events(lines(out)[-1]).most_rejected() == done.rejected_by_client
    times = done.rejected["examples"]
    told = f"{times} rejected ({times} examples; client 2 most often, {times})"
    assert "round 9 of 9: 3 replies, loss" in caplog.text
    assert told in caplog.text.split("round 9 of 9: ")[1]
