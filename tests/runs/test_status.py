"""How a run stands, by its folder: while it trains, when it was stopped, when it has ended."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fetchsgd.cli.main import app
from fetchsgd.errors import UserError
from fetchsgd.runs.lock import alone_in
from fetchsgd.runs.settings import resolve
from fetchsgd.runs.status import describe, read_status
from fetchsgd.simulation import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A simulated run, and how it stood after each round."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    seen = []
    run = Run(resolve({"task": {"name": "tinytask:tiny"}}))
    run.execute(folder, watch=lambda _: seen.append(read_status(folder)))
    return folder, seen


def test_a_run_that_trains_is_read_without_disturbing_it(run):
    folder, seen = run
    assert [status.state for status in seen] == ["training"] * 9
    assert (seen[0].round, seen[0].value) == (0, None)  # the first line comes with an evaluation
    late = seen[-1]
    assert (late.round, late.rounds, late.metric) == (6, 9, "accuracy")
    assert 0 < late.value <= 1
    assert late.left == pytest.approx(3 * late.seconds_per_round)
    assert late.replies is None
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    done = read_status(folder)
    assert (done.state, done.round, done.rounds, done.left) == ("finished", 9, 9, None)
    assert (done.upload_bytes, done.download_bytes) == (
        last["wire_upload_bytes"], last["wire_download_bytes"],
    )  # fmt: skip
    assert set(done.phases) == {"clients", "server", "recording"}
    assert sum(done.phases.values()) <= done.seconds
    assert done.value == last["accuracy"]


def test_a_run_that_was_stopped(run, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.toml", "about.json", "metrics.jsonl", "lock"):
        (folder / name).write_bytes((run[0] / name).read_bytes())
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert read_status(folder).state == "stopped"
    with alone_in(folder):
        assert read_status(folder).state == "training"
        assert read_status(folder).silent_for >= 0
    assert before.keys() == {path.name for path in folder.iterdir()}
    cut = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(cut[:-20])
    assert read_status(folder).round == 6
    (folder / "metrics.jsonl").unlink()
    assert read_status(folder).round == 0
    (folder / "config.toml").unlink()
    with pytest.raises(UserError, match="holds no run"):
        read_status(folder)


def test_looking_never_keeps_a_run_from_starting(tmp_path):
    """Somebody asks again and again while the folder is locked and given back."""
    asks = (
        "import sys, pathlib\nfrom fetchsgd.runs.lock import is_locked\nprint(flush=True)\n"
        "while True: is_locked(pathlib.Path(sys.argv[1]))"
    )
    with alone_in(tmp_path):
        pass
    words = [sys.executable, "-c", asks, str(tmp_path)]
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in processes:
            process.stdout.readline()
        for _ in range(100):
            with alone_in(tmp_path):
                pass
    finally:
        for process in processes:
            process.kill()
            process.communicate()


LINE = {
    "round": 40, "epoch": 10.0, "train_loss": 1.5, "accuracy": 0.75, "seconds": 400.0,
    "measured_upload_bytes": 2_000_000, "measured_download_bytes": 500,
    "wire_upload_bytes": 1, "wire_download_bytes": 1, "seconds/waiting": 300.0,
    "seconds/clients": 100.0, "federation/replies": 160, "federation/late": 2,
    "federation/failed": 0, "federation/rejected": 5, "federation/rejected_norm": 4,
    "federation/rejected_header": 1, "federation/rejected_seed": 0,
    "federation/rejected_by_client": {str(n): {"norm": 1} for n in range(6)} | {"9": {"norm": 3}},
}  # fmt: skip


def test_what_a_person_on_call_reads(tmp_path):
    (tmp_path / "config.toml").write_text("[train]\nepochs = 25.0\n")
    (tmp_path / "about.json").write_text(
        '{"task": "digits", "metric": "accuracy", "higher_is_better": true}'
    )
    before = LINE | {"round": 30, "seconds": 300.0}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(before)}\n{json.dumps(LINE)}\n")
    with alone_in(tmp_path):
        status = read_status(tmp_path)
    first, spent, moved, replies, rejected = describe(status).splitlines()
    assert first.endswith(": training, round 40 of 100, accuracy 75.00 %, loss 1.5")
    assert spent.startswith("6:40 so far, 10 s a round lately, 10:00 left, the last line is ")
    assert spent.endswith("s old; waiting 75%, clients 25%")
    assert moved == "up 2 MB, down 500 B"
    assert replies == "160 replies accepted, 2 late"
    assert rejected.startswith("5 rejected (4 norm, 1 header); by client 9: 3, 0: 1, ")
    assert rejected.endswith(" and 2 others")


def test_the_command(run):
    found = CliRunner().invoke(app, ["status", str(run[0].parent)])
    assert found.exit_code == 0
    assert ": finished, round 9 of 9, accuracy" in found.output
    found = CliRunner().invoke(app, ["status", "--json", str(run[0])])
    assert json.loads(found.output)["rounds"] == 9
    found = CliRunner().invoke(app, ["status", str(Path("/nowhere"))])
    assert isinstance(found.exception, UserError)
