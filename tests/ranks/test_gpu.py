"""Processes that share clients on a GPU: over NCCL, and two on one GPU over gloo."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def test_processes_on_a_gpu_train_what_one_does():
    """on_gpu.py says which sums went over NCCL, and compares weights."""
    program = Path(__file__).with_name("on_gpu.py")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert all("nccl" in line["one process sums by"][0] for line in lines)


@pytest.mark.parametrize("processes", [1, 2])
def test_torchrun_on_a_gpu(processes, tmp_path):
    words = ["train", "digits", "--epochs", "0.5", "--set", "train.device=cuda", "--out", "run"]
    command = [*TORCHRUN, f"--nproc-per-node={processes}", "-m", "fetchsgd", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result.get("processes", 1) == processes
    assert "cuda" in result["hardware"].lower() or "nvidia" in result["hardware"].lower()
