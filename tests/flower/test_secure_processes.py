"""Secure aggregation among Flower's real processes, some of which are killed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from flower.real import APP, ENVIRONMENT
from flower.test_federation import ended, lines, simulated, wait_for

from fetchsgd.flower.keys import make_identities, make_keys
from fetchsgd.flower.processes import Federation
from fetchsgd.runs.checkpoint import FILE

pytestmark = pytest.mark.federation

CLIENTS = 5


def test_a_client_killed_as_it_masks_and_the_server_after_it(tmp_path):
    """Over TLS and with keys. The client goes on in the same round, on another node.

    The server does the round again as another attempt, and its sum is the simulator's.
    """
    keys, out = tmp_path / "keys", tmp_path / "run"
    make_keys(keys, ["127.0.0.1"], nodes=CLIENTS + 1)
    make_identities(keys, CLIENTS)
    given = {
        "federation.out": str(out), "federation.clients": CLIENTS, "train.epochs": 1.0,
        "train.clients_per_round": CLIENTS, "federation.deadline": 120.0, "federation.wait": 120.0,
        "settings": "upload.sum=modular upload.secure=true upload.dropping=0.2 "
        "upload.sum_step=0.01 federation.phase_deadline=60 "
        f"federation.directory={keys / 'directory.json'}",
    }  # fmt: skip

    def start(client, node, more=""):
        federation.start_node(
            f"node{node}",
            f'partition-id={client} identity="{keys / f"client-{client}"}" '
            f'directory="{keys / "directory.json"}" state="{tmp_path / f"state-{client}"}"' + more,
            keys / f"node-{node}",
        )

    with Federation(tmp_path / "flower", ENVIRONMENT, tls=keys) as federation:
        for node in range(CLIENTS + 1):
            federation.flwr("supernode", "register", str(keys / f"node-{node}.pub"), "here")
        for client in range(CLIENTS):
            start(client, client, ' behave="stuck"' if client == 4 else "")
        federation.start_run(APP, given)
        wait_for(lambda: "stuck" in federation.log("node4"), "the masks of round 0", federation)
        federation.kill("node4")
        start(4, 5)
        masked = "phase mask: 5 of 5 clients have answered"
        wait_for(lambda: masked in federation.log("run"), "the next phase", federation)
        assert federation.kill_server()
        federation.kill("run")
        assert not lines(out)
        federation.start_run(APP, given, "again")
        result = ended(federation, out, "again")
        logs = "".join(federation.log(name) for name in ("run", "again", "superlink", "node0"))
    counts = result["federation"]["counts"]
    assert result["status"] == "finished"
    assert [line["round"] for line in lines(out)] == [1]
    assert counts["replies"] == CLIENTS
    assert counts["rejected_secure"] == counts["too_few"] == 0
    assert json.loads((out / "secure.json").read_text()) == {"era": 0, "round": 0, "attempt": 1}
    assert "round 0, attempt 1, phase reveal: 5 of 5 clients have answered" in logs
    simulated(given | {"federation.out": str(tmp_path / "x")}, tmp_path / "simulated")
    found, expected = (load_file(tmp_path / n / FILE) for n in ("run", "simulated"))
    torch.testing.assert_close(found["weights"], expected["weights"], rtol=1e-5, atol=1e-7)
    for secret in keys.glob("client-*"):
        assert secret.read_text().splitlines()[1] not in logs
    left = [path.suffix for folder in tmp_path.glob("state-*") for path in Path(folder).iterdir()]
    assert sorted(set(left)) == [".journal", ".lock", ".safetensors"]
