"""`fetchsgd train`, `sweep` and `report` with parts from outside the package, beside the user."""

import json
import subprocess
import sys
from pathlib import Path

from outside.settings import AS_TEXT

TESTS = Path(__file__).parents[1]
SETS = [word for text in AS_TEXT for word in ("--set", text)]

SWEEP = """
[task]
name = "tinytask:tiny"
[train]
epochs = 1.0
[[sweep]]
"method.name" = "outside.random_k:RandomK"
"method.k" = [30, 40]
"upload.quantiser" = ["bits", "outside.ternary:Ternary"]
"download.grid" = "outside.dyadic:Dyadic"
"download.step" = 0.0009765625
"""


def fetchsgd(*words):
    """In the folder of the tests, where the user's modules lie."""
    command = [sys.executable, "-m", "fetchsgd", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=TESTS)


def test_train_and_resume(tmp_path):
    words = "train", "tinytask:tiny", *SETS, "--out", tmp_path / "run"
    for more in ([], ["--resume"]):
        done = fetchsgd(*words, *more)
        assert done.returncode == 0, done.stderr
        assert "note: 30 of 75 coordinates are sent in each round" in done.stdout
    config = (tmp_path / "run" / "config.toml").read_text()
    assert 'quantiser = "outside.ternary:Ternary"' in config
    done = fetchsgd(*words, "--set", "stretch=2", "--resume")
    assert done.returncode == 2
    assert "upload.stretch was 1.5 and is now 2.0" in done.stderr


def test_a_sweep_and_its_report(tmp_path):
    file, runs = tmp_path / "sweep.toml", tmp_path / "runs"
    file.write_text(SWEEP)
    done = fetchsgd("sweep", file, "--out", runs, "--jobs", 2)
    assert done.returncode == 0, done.stderr + done.stdout
    results = {
        path.parent.name: json.loads(path.read_text()) for path in runs.glob("*/result.json")
    }
    start = "outside.random_k_RandomK-k30-quantiser-"
    few, many = (
        results[f"{start}{name}-grid-outside.dyadic_Dyadic-step0.000976562"]["wire_upload_bytes"]
        for name in ("outside.ternary_Ternary", "bits")
    )
    assert len(results) == 4
    assert few < many
    done = fetchsgd("report", runs, "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert "4 runs (4 finished" in done.stdout
