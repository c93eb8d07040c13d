"""Runs that are stopped, go on, and go on for longer, as a user sees it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fetchsgd.cli.going_on import where_it_stands
from fetchsgd.runs.checkpoint import saved_round

ROOT = Path(__file__).parents[2]
TINY = ("train", "tinytask:tiny", "--set", "checkpoint_every=2")
ENVIRONMENT = os.environ | {
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": str(ROOT / "tests"),
    "OMP_NUM_THREADS": "1",
}
APART = ("name", "seconds", "versions", "commit", "config")


def result(folder):
    found = json.loads((folder / "result.json").read_text())
    return {key: value for key, value in found.items() if key not in APART}


def started(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "fetchsgd", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        start_new_session=True,
    )  # fmt: skip


def wait_for(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise TimeoutError


def test_ctrl_c_says_what_is_saved_and_how_to_go_on(tmp_path):
    folder = tmp_path / "run"
    process = started(*TINY, "--epochs", 100_000, "--out", folder)
    wait_for(lambda: (saved_round(folder) or 0) >= 2)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    saved = saved_round(folder)
    assert f"stopped; round {saved:,} of 300,000 is saved" in errors
    assert f"fetchsgd train {folder} --resume" in errors
    assert "Traceback" not in errors
    assert where_it_stands(folder, 300_000) == f"going on after round {saved:,} of 300,000"


def test_ctrl_c_in_a_sweep_says_how_to_go_on(tmp_path):
    (tmp_path / "s.toml").write_text(
        '[task]\nname = "tinytask:tiny"\n[[sweep]]\n"train.epochs" = [1.0, 100000.0]\n'
    )
    process = started("sweep", tmp_path / "s.toml", "--out", tmp_path / "out")
    assert process.stdout.readline().startswith("[1/2] fetchsgd-epochs1: finished, accuracy ")
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped: 1 of 2 runs are done; the same command goes on with the rest" in errors


def test_a_longer_run_is_the_same_as_one_from_the_start(tmp_path, here):
    code, _, err = here(*TINY, "--out", tmp_path / "a")
    assert code == 0, err
    code, out, err = here("train", tmp_path / "a", "--resume", "--epochs", 5)
    assert code == 0, err
    assert "going on after round 9 of 15" in out
    here(*TINY, "--epochs", 5, "--out", tmp_path / "b")
    assert result(tmp_path / "a") == result(tmp_path / "b")
    code, out, _ = here("train", tmp_path / "a", "--resume")
    assert code == 0
    assert "the run has ended before; this is its result" in out


def test_a_schedule_that_ends_does_not_go_on(tmp_path, here):
    here(*TINY, "--set", "kind=triangular", "--out", tmp_path / "a")
    before = (tmp_path / "a/result.json").read_bytes()
    code, _, err = here("train", tmp_path / "a", "--resume", "--epochs", 5)
    assert code == 2
    assert "a triangular schedule over 3 epochs cannot go on to 5" in err
    assert "other learning rates" in err
    assert (tmp_path / "a/result.json").read_bytes() == before
    code, _, err = here("train", tmp_path / "a", "--resume", "--epochs", 2)
    assert code == 2
    assert "train.epochs was 3.0 and is now 2.0" in err


def test_a_piecewise_schedule_goes_on_where_its_points_do(tmp_path, here):
    points = ("--set", "kind=piecewise", "--set", "points=[[0, 0.1], [2, 0.05], [6, 0.01]]")
    here(*TINY, *points, "--out", tmp_path / "a")
    code, _, err = here("train", tmp_path / "a", "--resume", "--epochs", 6)
    assert code == 0, err
    here(*TINY, *points, "--epochs", 6, "--out", tmp_path / "b")
    assert result(tmp_path / "a") == result(tmp_path / "b")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["digits", "--resume"], "--resume needs the folder of a run, and digits holds none"),
        (["runs"], "runs is a folder; to go on with the run in it, add --resume"),
        (["notes.txt"], "notes.txt is a file, but the name of one with settings must end in .toml"),
        (["runs", "--resume", "--method", "fedavg"], "a run goes on with its own settings"),
    ],
)
def test_mistakes_about_folders(words, sentence, tmp_path, monkeypatch, here):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "notes.txt").touch()
    code, _, err = here("train", *words)
    assert code == 2
    assert sentence in err


def test_the_version_and_the_exit_codes_are_told(here):
    import fetchsgd

    assert here("--version")[:2] == (0, f"fetchsgd {fetchsgd.__version__}\n")
    code, help, _ = here("--help")
    assert code == 0
    page = (ROOT / "docs/command-line.md").read_text()
    told = [
        line.split()[0]
        for line in help.split("Exit codes:\n")[1].splitlines()
        if line[2:3].isdigit()
    ]
    assert told == ["0", "1", "2", "3", "4", "130"]
    assert all(f"| {code} |" in page for code in told)
