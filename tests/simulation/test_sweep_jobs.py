"""What becomes of the runs of a sweep, in this process and in others."""

import json
from pathlib import Path

import pytest
import torch

from fetchsgd.runs.lock import alone_in
from fetchsgd.runs.settings import changes
from fetchsgd.runs.toml_files import read_toml
from fetchsgd.simulation.sweep import plan
from fetchsgd.simulation.sweep_jobs import Changed, run_sweep, spread, visible_gpus

TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _tasks_are_found(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


def planned(entry, **train):
    content = {"task": {"name": "tinytask:tiny"}, "train": train, "sweep": [entry]}
    return plan(content, "the test")


def statuses(outcomes):
    return {outcome.name: outcome.status for outcome in outcomes}


def run(runs, out, jobs=1, changed=Changed.REFUSE):
    return run_sweep(runs, out, jobs, lambda _: None, changed)


@pytest.mark.parametrize("jobs", [1, 2])
def test_finished_runs_are_skipped_and_diverged_ones_recorded(jobs, tmp_path):
    runs = planned({"method.name": "uncompressed", "schedule.peak": [0.1, 1e9]})
    ended = []
    run_sweep(runs, tmp_path, jobs, ended.append)
    assert statuses(ended) == {
        "uncompressed-peak0.1": "finished", "uncompressed-peak1e+09": "diverged",
    }  # fmt: skip
    assert [outcome.status for outcome in run(runs, tmp_path, jobs)] == ["skipped", "skipped"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_does_not_end_the_sweep(jobs, tmp_path):
    """Another process is in its folder."""
    runs = planned({"method.k": [5, 6]})
    with alone_in(tmp_path / "fetchsgd-k5"):
        ended = run(runs, tmp_path, jobs)
    assert statuses(ended) == {"fetchsgd-k5": "failed", "fetchsgd-k6": "finished"}
    (message,) = [outcome.message for outcome in ended if outcome.status == "failed"]
    assert message.startswith("another process (")


@pytest.mark.parametrize("jobs", [1, 2])
def test_nor_does_a_bug_in_a_task(jobs, tmp_path, monkeypatch, capsys):
    """One that only training finds."""
    (tmp_path / "buggy_task.py").write_text(
        "import os, dataclasses, tinytask\n"
        "def buggy(seed, broken=False):\n"
        "    task = tinytask.tiny(seed)\n"
        "    if not (broken and 'BROKEN' in os.environ):\n"
        "        return task\n"
        "    return dataclasses.replace(task, loss=lambda outputs, targets: {}['no such key'])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}:{tmp_path}")
    runs = plan(
        {
            "task": {"name": "buggy_task:buggy"},
            "method": {"k": 5, "cols": 20},
            "sweep": [{"task.broken": [True, False]}],
        },
        "the test",
    )
    monkeypatch.setenv("BROKEN", "1")
    ended = run(runs, tmp_path / "out", jobs)
    assert sorted(outcome.status for outcome in ended) == ["failed", "finished"]
    (message,) = [outcome.message for outcome in ended if outcome.status == "failed"]
    assert message == "KeyError: 'no such key'"
    assert "Traceback" in capsys.readouterr().err


def test_a_folder_with_other_settings_is_noticed(tmp_path):
    run(planned({"method.k": [5, 6]}), tmp_path)
    now = planned({"method.k": [5, 6, 7]}, epochs=2, weight_decay=0.1, seed=1, eval_every=2)
    held = (tmp_path / "fetchsgd-k5" / "result.json").read_bytes()
    ended = run(now, tmp_path)
    assert statuses(ended) == {
        "fetchsgd-k5": "refused", "fetchsgd-k6": "refused", "fetchsgd-k7": "finished",
    }  # fmt: skip
    assert ended[0].message.endswith(
        "holds a run with other settings: train.epochs was 3.0 and is now 2.0, "
        "train.baseline_epochs was 3.0 and is now 2.0, "
        "train.weight_decay was 0.0 and is now 0.1 and 2 more"
    )
    assert not ended[0].is_done
    assert set(statuses(run(now, tmp_path, changed=Changed.SKIP)).values()) == {"skipped"}
    assert (tmp_path / "fetchsgd-k5" / "result.json").read_bytes() == held
    assert statuses(run(now, tmp_path, changed=Changed.REDO)) == {
        "fetchsgd-k5": "finished", "fetchsgd-k6": "finished", "fetchsgd-k7": "skipped",
    }  # fmt: skip
    for planned_run in now:
        folder = tmp_path / planned_run.name
        assert changes(read_toml(folder / "config.toml"), planned_run.settings) == []
        assert json.loads((folder / "result.json").read_text())["rounds"] == 6
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == [6]
        assert len(list(folder.glob("events.*"))) == 1


def test_redone_in_a_process_of_its_own(tmp_path):
    run(planned({"method.k": 5}), tmp_path)
    now = planned({"method.k": 5}, epochs=2)
    assert statuses(run(now, tmp_path, 2, Changed.REDO)) == {"fetchsgd-k5": "finished"}
    assert changes(read_toml(tmp_path / "fetchsgd-k5" / "config.toml"), now[0].settings) == []


def test_a_run_that_was_cut_off_is_not_resumed_with_other_settings(tmp_path):
    run(planned({"method.k": 5}), tmp_path)
    (tmp_path / "fetchsgd-k5" / "result.json").unlink()
    now = planned({"method.k": 5}, epochs=2)
    assert statuses(run(now, tmp_path)) == {"fetchsgd-k5": "refused"}
    assert statuses(run(now, tmp_path, changed=Changed.REDO)) == {"fetchsgd-k5": "finished"}


def test_settings_that_cannot_be_read_are_told(tmp_path):
    run(planned({"method.k": [5, 6]}), tmp_path)
    (tmp_path / "fetchsgd-k5" / "config.toml").write_text("[")
    ended = run(planned({"method.k": [5, 6]}), tmp_path)
    assert statuses(ended) == {"fetchsgd-k5": "failed", "fetchsgd-k6": "skipped"}
    assert "config.toml is not valid TOML" in ended[0].message


@pytest.mark.parametrize(
    ("gpus", "jobs", "expected"),
    [
        ([], 2, [None, None]),
        (["0"], 2, [None, None]),
        (["0", "1"], 4, ["0", "1", "0", "1"]),
        (["0", "1", "2"], 2, ["0", "1"]),
    ],
)
def test_jobs_take_gpus_in_turn(gpus, jobs, expected):
    assert spread(gpus, jobs) == expected


@pytest.mark.parametrize(
    ("count", "named", "expected"),
    [
        (2, None, ["0", "1"]),
        (2, "3,5", ["3", "5"]),
        (1, "GPU-8a,9", ["GPU-8a"]),  # torch does not see the second
        (0, "", []),
    ],
)
def test_gpus_have_the_names_that_the_user_gave_them(count, named, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == expected


def test_runs_side_by_side_see_one_gpu_each(tmp_path, monkeypatch):
    """Real processes; only the number of GPUs is made up. A device that is named stays."""
    (tmp_path / "seeing_task.py").write_text(
        "import os, pathlib, tinytask\n"
        "def seeing(seed, out, number=0):\n"
        "    seen = os.environ.get('CUDA_VISIBLE_DEVICES', 'all')\n"
        "    pathlib.Path(out, str(number)).write_text(seen)\n"
        "    return tinytask.tiny(seed)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}:{tmp_path}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    content = {
        "task": {"name": "seeing_task:seeing", "out": str(tmp_path)},
        "method": {"k": 5, "cols": 20},
        "sweep": [{"task.number": [1, 2]}, {"task.number": 3, "train.device": "cpu"}],
    }
    runs = plan(content, "the test")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert all(outcome.status == "finished" for outcome in run(runs, tmp_path / "out", 3))
    assert {(tmp_path / number).read_text() for number in "12"} == {"0", "1"}
    assert (tmp_path / "3").read_text() == "all"
