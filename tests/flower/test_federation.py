"""Real processes: a SuperLink, SuperNodes and runs on loopback, and what can happen to them."""

import json
import math
import re
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.federations import federation as without_processes
from flower.federations import train
from flower.real import APP, ENVIRONMENT
from outside.settings import AS_TEXT as OUTSIDE

from fetchsgd.flower.keys import make_identities, make_keys
from fetchsgd.flower.processes import Federation
from fetchsgd.flower.settings import read_settings
from fetchsgd.report.runs import load_run
from fetchsgd.runs.checkpoint import FILE
from fetchsgd.simulation import Run

pytestmark = pytest.mark.federation

LIMIT = 600.0  # seconds: others may use the machine, too
# Clients that learn enough in a few rounds, and 599 images to test on.
DIGITS = {
    "task.name": "digits",
    "settings": "task.split=iid task.examples_per_client=100 method.k=10000 method.cols=20000 "
    "method.momentum=0 local.epochs=5 local.batch_size=10 schedule.kind=constant "
    "schedule.peak=0.05 download.grid=steps",
}


def lines(folder):
    """All but a last line that is just being written."""
    path = folder / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def wait_for(condition, what, federation, seconds=LIMIT):
    end = time.monotonic() + seconds
    while not condition():
        logs = federation.log("run")[-3000:]
        assert time.monotonic() < end, f"waited in vain for {what}:\n{logs}"
        time.sleep(0.05)


def of_all(clients):
    """A round waits for everybody, however slow the machine is."""
    return {
        "federation.min_replies": clients, "federation.wait": LIMIT, "federation.deadline": LIMIT,
    }  # fmt: skip


def settings(out, clients):
    return {
        "federation.out": str(out), "federation.clients": clients,
        "train.clients_per_round": clients,
    }  # fmt: skip


def simulated(given, out):
    """The same settings, seed and cohorts without Flower."""
    config, ours = read_settings({"task.name": "tinytask:tiny", **given})
    return Run(config, ours.clients).execute(out)


def ended(federation, out, name="run"):
    """The result, once the run has written it."""
    federation.processes[name].wait(LIMIT)
    assert (out / "result.json").exists(), federation.log(name)[-4000:]
    return json.loads((out / "result.json").read_text())


def test_over_tls_with_keys_the_weights_are_the_simulators(tmp_path):
    """Three nodes with keys that are registered, one with a key that is not, one without.

    A fourth that is registered claims the number of another client, whose key it has not.
    """
    keys, directory = tmp_path / "keys", tmp_path / "keys" / "directory.json"
    make_keys(keys, ["127.0.0.1"], nodes=5)
    make_identities(keys, 4)
    out = tmp_path / "run"
    given = settings(out, 3) | of_all(3)
    given |= {"train.epochs": 2.0, "federation.directory": str(directory)}
    given["settings"] = "upload.bits=8 download.grid=steps"

    def start(federation, node, client, identity):
        config = f'partition-id={client} identity="{keys / f"client-{identity}"}"'
        federation.start_node(f"node{node}", config, keys / f"node-{node}")

    with Federation(tmp_path / "flower", ENVIRONMENT, tls=tmp_path / "keys") as federation:
        for node in (0, 1, 2, 4):
            told = federation.flwr("supernode", "register", str(keys / f"node-{node}.pub"), "here")
            assert "registered successfully" in told, told
        for node in (1, 2, 3):
            start(federation, node, client=node % 3, identity=node)
        start(federation, 4, client=0, identity=3)
        federation.start_node("keyless", "partition-id=0")
        federation.start_run(APP, given)
        refused = "is refused: it says that it is client 0, but has not signed"
        wait_for(lambda: refused in federation.log("run"), "the impostor", federation)
        start(federation, 0, client=0, identity=0)
        result = ended(federation, out)
        strangers = federation.log("node3") + federation.log("keyless")
        everything = "".join(federation.log(name) for name in federation.processes)
        names = list(federation.processes)
        assert len(federation.pids(*names)) >= 6
    assert not federation.pids(*names)
    assert "Received successfully" not in strangers
    assert result["federation"]["counts"]["joined"] == 3
    assert result["federation"]["counts"]["replies"] == 6
    assert result["federation"]["counts"]["rejected_identity"] >= 1
    for secret in keys.iterdir():
        if secret.suffix not in (".pub", ".crt", ".json"):
            assert secret.read_text().splitlines()[1] not in everything
            assert secret.stat().st_mode & 0o077 == 0
    expected = simulated(given, tmp_path / "simulated")
    found, simulation = (load_file(tmp_path / n / FILE) for n in ("run", "simulated"))
    torch.testing.assert_close(found["weights"], simulation["weights"], rtol=1e-5, atol=1e-7)
    assert torch.equal(found["steps"], simulation["steps"])
    assert result["wire_download_bytes"] == expected["wire_download_bytes"]
    assert result["value"] == expected["value"]
    assert load_run(out).status == "finished"


def test_parts_from_outside_the_package_train_as_in_simulation(tmp_path):
    """Method, quantiser and grid are files that every process imports by name."""
    out = tmp_path / "run"
    given = settings(out, 3) | of_all(3) | {"train.epochs": 3.0, "settings": " ".join(OUTSIDE)}
    with Federation(tmp_path / "flower", ENVIRONMENT) as federation:
        federation.start_nodes(3)
        federation.start_run(APP, given)
        result = ended(federation, out)
    expected = simulated(given, tmp_path / "simulated")
    found, simulation = (load_file(tmp_path / n / FILE) for n in ("run", "simulated"))
    torch.testing.assert_close(found["weights"], simulation["weights"], rtol=1e-5, atol=1e-7)
    assert torch.equal(found["steps"], simulation["steps"])
    assert int(found["state.count"]) == 3
    counts = result["federation"]["counts"]
    assert counts["replies"] == 9
    assert counts["received_bytes"] == result["wire_upload_bytes"] == expected["wire_upload_bytes"]
    assert counts["sent_bytes"] == result["wire_download_bytes"] == expected["wire_download_bytes"]


def test_killed_nodes_dishonest_clients_and_a_killed_server(tmp_path):
    """All in one federation: training ends as if only the honest clients had been there.

    Two nodes are killed: one has a folder for its state and goes on from there, one has lost it.
    """
    out = tmp_path / "run"
    given = settings(out, 4) | DIGITS | {"train.epochs": 4.0, "federation.min_replies": 2}
    keeps = f'partition-id=1 state="{tmp_path / "state"}"'
    with Federation(tmp_path / "flower", ENVIRONMENT) as federation:
        federation.start_nodes([0])
        federation.start_node("node1", keeps)
        federation.start_node("node2", 'partition-id=2 behave="random-nan"')
        federation.start_node("node3", 'partition-id=3 behave="huge"')
        federation.start_run(APP, given)
        # By then both hold version 1: their replies to round 1 have been merged.
        wait_for(lambda: "ROUND 2]" in federation.log("node1"), "round 2", federation)
        federation.kill("node0")
        federation.kill("node1")
        federation.start_nodes([0])
        federation.start_node("node1", keeps)
        wait_for(lambda: lines(out)[-1]["federation/joined"] >= 6, "their return", federation)
        before = lines(out)[-1]["round"]
        assert federation.kill_server()
        federation.kill("run")
        assert lines(out)[-1]["round"] in (before, before + 1)
        federation.start_run(APP, given, "again")
        result = ended(federation, out, "again")
    counts, logs = result["federation"]["counts"], federation.log("run") + federation.log("again")
    assert result["status"] == "finished"
    assert [line["round"] for line in lines(out)] == [1, 2, 3, 4]
    assert counts["replies"] == 2 * 4
    assert counts["resumed"] == 1
    assert counts["rejected_undecodable"] >= 1
    assert counts["rejected_not_finite"] >= 1
    assert counts["rejected_norm"] >= 2
    assert counts["joined"] >= 4 + 2 + 2  # the honest ones at least, after the server was killed
    last = lines(out)[-1]
    assert {name: last[f"federation/{name}"] for name in counts} == counts
    assert "is rejected in round 0 (norm)" in logs
    # A line is written before the checkpoint of its round, which may be the one that was cut off.
    resumed = [f"round {n} of 4\n" for n in (before - 1, before, before + 1)]
    assert any(line in federation.log("again") for line in resumed)
    # Client 1 came back twice, from whatever happened, and each time knew where it had been.
    held = [int(n) for n in re.findall(r"client 1 has joined and holds version (\d+)", logs)]
    assert held[0] == 0
    assert len(held) == 3
    assert 0 <= held[1] <= held[2]
    assert held[2] >= 1
    assert counts["lost"] >= 1
    compare_with_the_honest(result, given, tmp_path)


def test_each_lie_in_turn_is_seen_and_no_honest_reply_is_lost(tmp_path):
    """Over a real SuperLink: what Flower cannot read, and what it reads without a second look."""
    out = tmp_path / "run"
    given = settings(out, 4) | {"train.epochs": 5.0}
    given["settings"] = "train.averaging=examples method.rows=2"
    with Federation(tmp_path / "flower", ENVIRONMENT) as federation:
        federation.start_nodes([0, 1, 3])
        federation.start_node(
            "node2", 'partition-id=2 behave="scaled-unreadable-examples-half-loss"'
        )
        federation.start_run(APP, given)
        result = ended(federation, out)
        log = federation.log("run")
    counts = result["federation"]["counts"]
    assert result["status"] == "finished"
    assert counts["replies"] == 5 * 3 + 2
    assert counts["left_out"] == 0  # never three rejections in a row
    assert counts["failed"] == counts["silent"] == counts["late"] == 0
    assert counts["rejected_unreadable"] == 1
    assert counts["rejected_norm"] == 2
    assert counts["capped_examples"] == counts["bounded_losses"] == 1
    for sentence in (
        "client 2 is rejected in round 0 (norm)",
        "client 2 is rejected in round 1 (unreadable)",
        "client 2 claims 1000000 examples in round 2",
        "client 2 is rejected in round 3 (norm)",
        "client 2 claims a loss of 1e+308 in round 4",
    ):
        assert sentence in log
    assert all(line["train_loss"] < 100 for line in lines(out))
    assert bool(load_file(out / FILE)["weights"].isfinite().all())


def compare_with_the_honest(result, given, folder):
    """What has been rejected has left no trace, and the clean run is not far away."""
    values = {}
    for name, clients in (("honest", [0, 1]), ("clean", range(4))):
        grid = without_processes(folder / name, clients=clients)
        waits = {"federation.deadline": 5.0, "federation.wait": 5.0}
        grid.run_config.update(given | waits | {"federation.out": str(folder / name)})
        values[name] = train(grid)["value"]
    found, expected = (load_file(folder / name / FILE) for name in ("run", "honest"))
    assert torch.equal(found["steps"], expected["steps"])
    assert result["value"] == values["honest"]
    # By chance the second of two samples of 599 images is worse by more than three standard errors
    # of their difference once in 700 times. Half of the data is missing, too: with seeds 0, 1 and 2
    # that costs 0.023, 0.025 and -0.005, about one of these errors.
    error = math.sqrt(2 * values["clean"] * (1 - values["clean"]) / 599)
    assert error < 0.025
    assert result["value"] >= values["clean"] - 3 * error


@pytest.fixture(scope="module")
def four_nodes(tmp_path_factory):
    with Federation(tmp_path_factory.mktemp("federation") / "flower", ENVIRONMENT) as federation:
        federation.start_nodes(4)
        yield federation


def test_a_mistake_in_the_settings_is_told_and_nothing_hangs(four_nodes):
    log = four_nodes.run(APP, {"settings": "method.kk=3"}, timeout=60)
    assert "there is no setting method.kk" in log


def test_half_of_all_clients_fall_silent_and_return(four_nodes, tmp_path):
    """They stand still for some rounds; back again they are late, and fetch what they missed."""
    out, federation = tmp_path / "run", four_nodes
    given = settings(out, 4) | {
        "train.clients_per_round": 2, "train.epochs": 2.5, "federation.oversample": 2.0,
    }  # fmt: skip
    federation.start_run(APP, given)
    wait_for(lambda: len(lines(out)) >= 1, "the first round", federation)
    for name in ("node2", "node3"):
        federation.signal(name, signal.SIGSTOP)
    wait_for(lambda: len(lines(out)) >= 3, "rounds without them", federation)
    for name in ("node2", "node3"):
        federation.signal(name, signal.SIGCONT)
    result = ended(federation, out)
    counts = result["federation"]["counts"]
    assert result["status"] == "finished"
    assert counts["replies"] >= 2 * result["rounds"]
    assert counts["silent"] >= 2
    assert counts["lost"] == 0
    assert counts["rejected_header"] == 0
