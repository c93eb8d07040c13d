"""Real processes: plain clients, which can import neither fetchsgd nor torch, among ours."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fetchsgd[flower]'")

from fetchsgd.flower.handout import setup_of, write_handout
from fetchsgd.flower.processes import Federation
from fetchsgd.runs.checkpoint import FILE
from fetchsgd.simulation import Run

pytestmark = pytest.mark.federation

APP = Path(__file__).parents[2] / "examples" / "plain_client"
SETTINGS = {"train.epochs": 4.0, "federation.clients": 4}
HIDDEN = 'raise ImportError(f"{__name__} is hidden from this client")\n'


def hide(folder, *packages):
    """A folder that, in front of all others, makes packages impossible to import."""
    for package in packages:
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(HIDDEN)
    return str(folder)


def test_plain_clients_train_with_ours_and_all_have_the_same_weights(tmp_path):
    given = [" ".join(f"{key}={value}" for key, value in SETTINGS.items())]
    setup = setup_of(APP, given)
    write_handout(setup, tmp_path / "handout")
    hidden = hide(tmp_path / "hidden", "fetchsgd", "torch")
    out = tmp_path / "run"
    with Federation(tmp_path / "flower") as federation:
        for client in (0, 2):
            config = f'partition-id={client} handout="{tmp_path / "handout"}"'
            federation.start_node(f"node{client}", config, PYTHONPATH=hidden)
        for client in (1, 3):
            federation.start_node(f"node{client}", f'partition-id={client} client="fetchsgd"')
        log = federation.run(APP, SETTINGS | {"federation.out": str(out)}, timeout=400)
        told = [federation.log(f"node{client}") for client in range(4)]
    assert (out / "result.json").exists(), log[-4000:] + told[0][-2000:]
    counts = json.loads((out / "result.json").read_text())["federation"]["counts"]
    # Whoever replies has found the server's weights: its checksum, in each of the four rounds.
    assert counts["replies"] == 16
    assert counts["failed"] == counts["resent"] == counts["rejected_settings"] == 0
    for client in (0, 2):
        assert [f"round {n}: answer, alone" in told[client] for n in range(4)] == [True] * 4
    Run(setup.config, 4).execute(tmp_path / "simulated")
    found, expected = (load_file(folder / FILE) for folder in (out, tmp_path / "simulated"))
    assert torch.equal(found["steps"], expected["steps"])
    assert torch.equal(found["weights"], expected["weights"])
