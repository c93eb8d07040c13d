"""torchrun itself: two machines' worth of it, a process that is killed, and a run that goes on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.federation

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TRAIN = ["-m", "fetchsgd", "train"]
# Enough rounds that a run does not end before a process of it is killed.
SETTINGS = ["digits", "--epochs", "4", "--set", "train.checkpoint_every=1"]


def start(launcher, words, folder):
    command = [*TORCHRUN, *launcher, *TRAIN, *words]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def workers_of(process):
    """The processes that a launcher has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(child) for child in children.split()]


def wait_for(path):
    until = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_killed_process_ends_the_run_and_others_go_on(tmp_path):
    run = start(["--nproc-per-node=2"], [*SETTINGS, "--out", "run"], tmp_path)
    wait_for(tmp_path / "run" / "checkpoint.safetensors")
    os.kill(workers_of(run)[1], signal.SIGKILL)
    said, _ = run.communicate(timeout=120)
    assert run.returncode != 0
    assert said.count("error: another process of this run has ended") == 1
    assert "To go on from there: fetchsgd train run --resume" in said
    again = start(["--nproc-per-node=3"], ["run", "--resume"], tmp_path)
    said, _ = again.communicate(timeout=300)
    assert again.returncode == 0, said
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "finished"
    assert result["processes"] == 3
    one = subprocess.run(
        [sys.executable, *TRAIN, *SETTINGS, "--out", "one"], cwd=tmp_path, capture_output=True
    )
    assert one.returncode == 0
    alone = json.loads((tmp_path / "one" / "result.json").read_text())
    for name in ("upload_bytes", "wire_upload_bytes", "download_bytes"):
        assert result[name] == alone[name]
    assert result["value"] == pytest.approx(alone["value"], abs=0.01)


def test_two_machines_need_no_common_disk(tmp_path):
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    running = []
    for node in range(2):
        folder = tmp_path / f"machine{node}"
        folder.mkdir()
        where = ["--master-addr=localhost", f"--master-port={port}"]
        launcher = ["--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1", *where]
        running.append(start(launcher, ["digits", "--epochs", "0.3", "--out", "run"], folder))
    said = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert "accuracy" in said[0]
    assert "accuracy" not in said[1]
    assert (tmp_path / "machine0" / "run" / "result.json").exists()
    assert not (tmp_path / "machine1" / "run").exists()
