"""The command line as a user meets it: real processes, exit codes and sentences."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from fetchsgd.runs.lock import alone_in

ROOT = Path(__file__).parents[2]
# Several processes on few cores: threads that wait for each other would take most of the time.
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(ROOT / "tests"),
    "COLUMNS": "120",
    "OMP_NUM_THREADS": "1",
}


def fetchsgd(*words, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "fetchsgd", *map(str, words)],
        capture_output=True, text=True, cwd=cwd,
        env=ENVIRONMENT,
    )  # fmt: skip


def test_trains_and_tells(tmp_path):
    done = fetchsgd("train", "tinytask:tiny", "--method", "true_topk", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "12 clients, 4 a round, 9 rounds, 75 weights, true_topk on" in done.stdout
    assert "as the paper counts: 1x up" in done.stdout
    assert json.loads((tmp_path / "run" / "result.json").read_text())["method"] == "true_topk"


def test_trains_from_a_file_into_a_numbered_folder(tmp_path):
    (tmp_path / "run.toml").write_text(
        '[task]\nname = "tinytask:tiny"\n[method]\nname = "fedavg"\n'
    )
    for number in (1, 2):
        assert fetchsgd("train", "run.toml", cwd=tmp_path).returncode == 0
        assert (tmp_path / "runs" / f"tiny-fedavg-{number}" / "result.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "digit"], "error: there is no task 'digit'; did you mean 'digits'"),
        (
            ["train", "tinytask:tiny", "--set", "k=100"],
            "error: method.k must be from 0 to 75, got 100",
        ),
        (["train", "missing.toml"], "error: cannot read missing.toml: No such file"),
        (["train", "tinytask:tiny", "--resume"], "error: --resume needs the folder of a run"),
        (
            ["train", "digits", "--k", "500"],
            "No such option '--k'. It is a setting: --set k=VALUE",
        ),
        (["train", "digits", "--lr=1"], "It is a setting: --set schedule.peak=VALUE"),
        (["train"], "Missing argument"),
        (["trian"], "No such command 'trian'"),
        (["sweep", "missing.toml", "--out", "x"], "error: cannot read missing.toml"),
    ],
)
def test_mistakes_exit_with_2_and_leave_nothing(words, message, tmp_path, monkeypatch, here):
    monkeypatch.chdir(tmp_path)
    code, _, said = here(*words)
    assert code == 2
    assert message in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_so_they_do_in_a_process_of_their_own(tmp_path):
    done = fetchsgd("train", "digit", cwd=tmp_path)
    assert done.returncode == 2
    assert "error: there is no task 'digit'; did you mean 'digits'" in done.stderr
    assert "Traceback" not in done.stderr


def test_divergence_exits_with_3(tmp_path):
    done = fetchsgd(
        "train",
        "tinytask:tiny",
        "--method",
        "uncompressed",
        "--set",
        "peak=1e9",
        "--out",
        tmp_path / "r",
    )
    assert done.returncode == 3
    assert "diverged: the loss became" in done.stderr
    again = fetchsgd(
        "train", "tinytask:tiny", "--method", "uncompressed", "--set", "peak=1e9",
        "--out", tmp_path / "r", "--resume",
    )  # fmt: skip
    assert again.returncode == 3
    rounds = json.loads((tmp_path / "r" / "result.json").read_text())["rounds"]
    assert f"r holds a run that diverged at round {rounds}" in again.stderr
    assert "Traceback" not in again.stderr


def test_a_finished_run_that_is_resumed_tells_its_result(tmp_path):
    train = ["train", "tinytask:tiny", "--method", "uncompressed", "--out", tmp_path / "r"]
    first, again = fetchsgd(*train), fetchsgd(*train, "--resume")
    assert again.returncode == 0, again.stderr
    last = [done.stdout.splitlines()[-4:] for done in (first, again)]
    assert last[0] == last[1]
    assert last[0][0].startswith("accuracy ")


def test_a_second_run_in_a_folder_is_refused(tmp_path):
    with alone_in(tmp_path / "r"):
        done = fetchsgd("train", "tinytask:tiny", "--out", tmp_path / "r")
    assert done.returncode == 2
    assert f"another process ({os.getpid()}) is training in" in done.stderr
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["lock"]


def test_sweeps_and_lists(tmp_path, here):
    (tmp_path / "s.toml").write_text(
        '[task]\nname = "tinytask:tiny"\n'
        '[[sweep]]\n"method.k" = [5, 9]\n[[sweep]]\n"method.name" = "fedavg"\n'
    )
    done = fetchsgd("sweep", tmp_path / "s.toml", "--out", tmp_path / "out", "--jobs", 2)
    assert done.returncode == 0, done.stderr
    assert "[3/3]" in done.stdout
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "fetchsgd-k5", "fetchsgd-k9", "fedavg",
    }  # fmt: skip
    for words, expected in ((["tasks"], "digits"), (["methods"], "local_topk")):
        assert expected in fetchsgd(*words).stdout
    (tmp_path / "s.toml").write_text(
        '[task]\nname = "tinytask:tiny"\n[train]\nseed = 1\n[[sweep]]\n"method.k" = 5\n'
    )
    code, out, err = here("sweep", tmp_path / "s.toml", "--out", tmp_path / "out")
    assert code == 1
    assert "train.seed was 0 and is now 1)" in out
    assert "refused: fetchsgd-k5; --changed redo runs them again" in err
    code, out, _ = here(
        "sweep", tmp_path / "s.toml", "--out", tmp_path / "out", "--changed", "skip"
    )
    assert code == 0
    assert "fetchsgd-k5: skipped (" in out


@pytest.mark.parametrize("command", ["train", "sweep", "report", "demo", "theory", "privacy"])
def test_help_is_plain_text(command, here):
    code, help, _ = here(command, "--help")
    assert code == 0
    assert "[required]" in help or command == "demo"
    assert "\\" not in help


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys({packages}))  # so they cannot be imported
sys.argv = ["fetchsgd", *{words}]
from fetchsgd.cli import main
main()
"""


@pytest.mark.parametrize(
    ("packages", "words", "message"),
    [
        (["typer", "rich"], ["--help"], 'typer is not installed; .*pip install "fetchsgd.sim.'),
        (["rich"], ["tasks"], 'rich is not installed; install it with: pip install "fetchsgd'),
        (["safetensors"], ["train", "digits"], 'safetensors is not installed; .*"fetchsgd.sim."'),
        (["sklearn"], ["train", "digits"], 'sklearn is not installed; .*"fetchsgd.sim."'),
        (["matplotlib"], ["report", "."], 'matplotlib is not installed; .*"fetchsgd.sim."'),
    ],
)
def test_a_missing_package_is_told_with_its_extra(packages, words, message, tmp_path):
    """As after `pip install fetchsgd` without extras."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(packages=packages, words=words)],
        capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(f"error: .*{message}.*\n", done.stderr)
    assert not list(tmp_path.iterdir())


def test_reports_on_folders_and_on_the_results_it_wrote(tmp_path, monkeypatch, here):
    train = ["train", "tinytask:tiny", "--method", "uncompressed"]
    monkeypatch.chdir(tmp_path)
    assert here(*train, "--out", tmp_path / "runs" / "one")[0] == 0
    results = tmp_path / "results" / "tiny.jsonl"
    for given, page in ((["runs"], "a/page.html"), ([results, "runs"], "b/page.html")):
        code, told, _ = here("report", *given, "--out", page, "--results", results)
        assert code == 0
        assert f"1 result: {results}" in told
    assert (tmp_path / "a/page.html").read_bytes() == (tmp_path / "b/page.html").read_bytes()
    assert json.loads(results.read_text())["name"] == "one"
    results.write_text("[]\n")
    code, _, said = here("report", results, "--out", "c.html")
    assert code == 2
    assert "tiny.jsonl, line 1: must hold one JSON object, got []" in said
    assert not (tmp_path / "c.html").exists()


@pytest.mark.parametrize(
    ("file", "most"),
    [
        ("algorithm1.py", 100),
        ("custom_task.py", 60),
        ("custom_method.py", 80),
        ("custom_quantiser.py", 100),
        ("own_loop.py", 80),
    ],
)
def test_examples_are_short(file, most):
    assert len((ROOT / "examples" / file).read_text().splitlines()) < most


def example(name):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_sketch_example_finds_all_that_is_hidden():
    assert "found 50 of 50 large coordinates" in example("sketch.py").stdout


def test_algorithm1_by_hand_learns():
    done = example("algorithm1.py")
    assert float(done.stdout.strip().splitlines()[-1].split("accuracy ")[1].split(",")[0]) > 0.9


def test_a_loop_of_ones_own_learns_with_clients_that_come_and_go(capsys):
    runpy.run_path(str(ROOT / "examples/own_loop.py"), run_name="__main__")
    accuracy = capsys.readouterr().out.split("test accuracy ")[1].split()[0]
    assert float(accuracy) > 0.8


def test_the_custom_task_of_the_examples_trains(tmp_path):
    done = fetchsgd(
        "train", "custom_task:sensors", "--set", "cols=1000",
        "--out", tmp_path / "r", cwd=ROOT / "examples",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert result["metric"] == "squared_error"
    assert result["value"] < 5  # of a variance near 40


@pytest.mark.parametrize(
    "words",
    [
        ("--method", "custom_method:ServerAdam", "--set", "peak=0.002"),
        ("--set", "quantiser=custom_quantiser:Bytes", "--set", "levels=15", "--set", "peak=0.1"),
    ],
    ids=["method", "quantiser"],
)
def test_the_custom_parts_of_the_examples_train(words, tmp_path):
    done = fetchsgd(
        "train", "digits", *words, "--set", "epochs=6", "--set", "eval_every=6",
        "--out", tmp_path / "r", cwd=ROOT / "examples",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "r" / "result.json").read_text())["value"] > 0.7
