"""Secure aggregation among Flower's real processes, which are killed in every phase."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.fakegrid import FakeGrid
from flower.federations import counts, train, weights
from flower.phases import PHASES, phase_of
from flower.real import APP, ENVIRONMENT
from flower.test_federation import LIMIT, ended, lines, simulated, wait_for
from flower.watched import Watched

from fetchsgd.flower.keys import make_identities, make_keys
from fetchsgd.flower.processes import Federation

pytestmark = pytest.mark.federation


class Members:
    """Who takes part: keys of clients, what their node configs say, and the settings of a run."""

    def __init__(self, folder, clients):
        self.folder, self.keys, self.clients = folder, folder / "keys", clients
        make_identities(self.keys, clients)

    def node_config(self, client):
        return {
            "partition-id": client, "identity": str(self.keys / f"client-{client}"),
            "directory": str(self.keys / "directory.json"),
            "state": str(self.folder / f"state-{client}"),
        }  # fmt: skip

    def start(self, federation, client, node=None):
        node = client if node is None else node
        pairs = self.node_config(client).items()
        config = " ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in pairs)
        key = None if federation.tls is None else self.keys / f"node-{node}"
        federation.start_node(f"node{node}", config, key)

    def settings(self, out, rounds, more=""):
        """A phase ends when all have answered, or are known to be gone."""
        return {
            "federation.out": str(out), "federation.clients": self.clients,
            "train.epochs": float(rounds), "train.clients_per_round": self.clients,
            "federation.deadline": LIMIT, "federation.wait": LIMIT,
            "settings": "upload.sum=modular upload.secure=true upload.sum_step=0.01 "
            f"federation.phase_deadline={LIMIT} "
            f"federation.directory={self.keys / 'directory.json'} {more}",
        }  # fmt: skip


def test_a_client_killed_as_it_masks_and_the_server_after_it(tmp_path):
    """Over TLS and with keys. The client goes on in the same round, on another node.

    The server does the round again as another attempt, and its sum is the simulator's.
    """
    members, out, watched = Members(tmp_path, 5), tmp_path / "run", Watched(tmp_path / "watched")
    keys, clients = members.keys, members.clients
    make_keys(keys, ["127.0.0.1"], nodes=clients + 1)
    given = members.settings(out, 1, "upload.dropping=0.2")
    environment = ENVIRONMENT | watched.environment
    with Federation(tmp_path / "flower", environment, tls=keys) as federation:
        for node in range(clients + 1):
            federation.flwr("supernode", "register", str(keys / f"node-{node}.pub"), "here")
        for client in range(clients):
            members.start(federation, client)
        _, let_another_go_on = watched.hold(0, "mask", 3)  # or the phase might be over before
        is_held, _ = watched.hold(0, "mask", 4)
        federation.start_run(APP, given)
        wait_for(is_held, "the masks of round 0", federation)
        federation.kill("node4")
        is_back, go_on = watched.hold(0, "mask", 4)
        members.start(federation, 4, node=5)
        wait_for(is_back, "the client on its other node", federation)
        go_on()
        let_another_go_on()
        masked = "phase mask: 5 of 5 clients have answered"
        wait_for(lambda: masked in federation.log("run"), "the next phase", federation)
        assert federation.kill_server()
        federation.kill("run")
        assert not lines(out)
        federation.start_run(APP, given, "again")
        result = ended(federation, out, "again")
        logs = "".join(federation.log(name) for name in ("run", "again", "superlink", "node0"))
    assert result["status"] == "finished"
    assert [line["round"] for line in lines(out)] == [1]
    assert counts(result)["replies"] == clients
    assert counts(result)["rejected_secure"] == counts(result)["too_few"] == 0
    assert json.loads((out / "secure.json").read_text()) == {"era": 0, "round": 0, "attempt": 1}
    assert "round 0, attempt 1, phase reveal: 5 of 5 clients have answered" in logs
    assert watched.sums() == {(0, 1): [0, 1, 2, 3, 4]}
    simulated(given | {"federation.out": str(tmp_path / "x")}, tmp_path / "simulated")
    assert torch.equal(weights(out), weights(tmp_path / "simulated"))
    for secret in keys.glob("client-*"):
        assert secret.read_text().splitlines()[1] not in logs
    left = [path.suffix for folder in tmp_path.glob("state-*") for path in Path(folder).iterdir()]
    assert sorted(set(left)) == [".journal", ".lock", ".safetensors"]


def test_rounds_end_without_clients_that_are_killed_for_good(tmp_path):
    """One as it masks, which is not in the sum, and one as it reveals shares, which is.

    The four others do the next round. Without processes the same clients give the same weights.
    """
    members, out, watched = Members(tmp_path, 6), tmp_path / "run", Watched(tmp_path / "watched")
    tolerant = "upload.colluding=0 upload.dropping=0.34"
    given = members.settings(out, 2, tolerant)
    gone = {4: "mask", 5: "reveal"}
    with Federation(tmp_path / "flower", ENVIRONMENT | watched.environment) as federation:
        for client in range(members.clients):
            members.start(federation, client)
        held = {client: watched.hold(0, phase, client)[0] for client, phase in gone.items()}
        federation.start_run(APP, given)
        for client, is_held in held.items():
            wait_for(is_held, f"client {client}", federation)
            federation.kill(f"node{client}")
        result = ended(federation, out)
        log = federation.log("run")
    assert "round 0, attempt 0, phase mask: 5 of 6 clients have answered; without 4" in log
    assert "round 0, attempt 0, phase reveal: 4 of 5 clients have answered; without 5" in log
    assert watched.sums() == {(0, 0): [0, 1, 2, 3, 5], (1, 0): [0, 1, 2, 3]}
    assert result["status"] == "finished"
    assert counts(result)["replies"] == 5 + 4
    assert counts(result)["too_few"] == counts(result)["rejected_secure"] == 0
    assert torch.equal(weights(out), weights(without_processes(tmp_path / "calm", gone, tolerant)))


def without_processes(folder, gone, more):
    """The run folder of the same rounds, in which these leave in these phases."""
    members, out = Members(folder, 6), folder / "run"
    grid = FakeGrid(members.settings(out, 2, more) | {"task.name": "tinytask:tiny"})

    def leaves(node, phase):
        def behave(message, reply):
            node.online = phase_of(message) != PHASES.index(phase)
            return reply if node.online else None

        return behave

    for client in range(members.clients):
        node = grid.nodes[grid.add(client, config=members.node_config(client))]
        node.behave = leaves(node, gone[client]) if client in gone else None
    train(grid)
    return out


def test_a_server_killed_in_each_phase(tmp_path):
    """Five times in two rounds, each time while a client stands still in that phase.

    Every attempt has a number of its own, and weights are those of a run that nobody disturbed.
    """
    members, out, watched = Members(tmp_path, 4), tmp_path / "run", Watched(tmp_path / "watched")
    given = members.settings(out, 2)
    kills = [(0, "advertise"), (0, "share"), (0, "mask"), (1, "agree"), (1, "reveal")]
    with Federation(tmp_path / "flower", ENVIRONMENT | watched.environment) as federation:
        for client in range(members.clients):
            members.start(federation, client)
        is_held, go_on = watched.hold(*kills[0], 3)
        federation.start_run(APP, given)
        for number, (round, phase) in enumerate(kills, 1):
            wait_for(is_held, f"round {round}, phase {phase}", federation)
            assert federation.kill_server()
            federation.kill("run" if number == 1 else f"run{number - 1}")
            assert len(lines(out)) == round
            go_on()
            if number < len(kills):
                is_held, go_on = watched.hold(*kills[number], 3)
            federation.start_run(APP, given, f"run{number}")
        result = ended(federation, out, f"run{len(kills)}")
    assert result["status"] == "finished"
    assert [line["round"] for line in lines(out)] == [1, 2]
    assert counts(result)["replies"] == 2 * members.clients
    assert counts(result)["too_few"] == counts(result)["rejected_secure"] == 0
    assert json.loads((out / "secure.json").read_text()) == {"era": 0, "round": 1, "attempt": 2}
    assert watched.sums() == {(0, 3): [0, 1, 2, 3], (1, 2): [0, 1, 2, 3]}
    simulated(given | {"federation.out": str(tmp_path / "x")}, tmp_path / "simulated")
    assert torch.equal(weights(out), weights(tmp_path / "simulated"))
