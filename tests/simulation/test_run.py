"""Runs that survive: folders, resuming after a kill, full disks, divergence."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fetchsgd.errors import DivergedError, UserError
from fetchsgd.runs import checkpoint as checkpoints
from fetchsgd.runs.settings import resolve
from fetchsgd.runs.toml_files import read_toml
from fetchsgd.simulation import Run

TESTS = str(Path(__file__).parents[1])
METHODS = ["fetchsgd", "true_topk", "local_topk", "fedavg", "uncompressed"]


def make(method="fetchsgd", *sets):
    return Run(resolve({"task": {"name": "tinytask:tiny"}, "method": {"name": method}}, sets))


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder):
    return load_file(folder / checkpoints.FILE)["weights"]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_leaves_a_folder(method, tmp_path):
    result = make(method, "epochs=8").execute(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert result["status"] == "finished"
    assert result["value"] > 0.5
    assert result["rounds"] == 24
    assert len(lines(tmp_path / "run")) == 8
    assert read_toml(tmp_path / "run" / "config.toml") == result["config"]
    assert list((tmp_path / "run").glob("events.*"))
    assert result["upload_compression"] == pytest.approx(
        {"fetchsgd": 75 / 40, "local_topk": 75 / 20}.get(method, 1.0)
    )


@pytest.mark.parametrize("method", METHODS)
def test_equal_seeds_give_equal_runs(method, tmp_path):
    for name in ("a", "b"):
        make(method).execute(tmp_path / name)
    assert torch.equal(weights(tmp_path / "a"), weights(tmp_path / "b"))
    make(method, "seed=1").execute(tmp_path / "c")
    assert not torch.equal(weights(tmp_path / "a"), weights(tmp_path / "c"))


TRAFFIC = [f"{count}{way}load_bytes" for count in ("", "wire_") for way in ("up", "down")]


class StopError(Exception):
    pass


@pytest.mark.parametrize("stop_at", [1, 4, 5, 8])
@pytest.mark.parametrize(
    ("method", "sets"),
    [
        *((method, ()) for method in METHODS),
        ("local_topk", ("local_error=true", "local_momentum=0.5")),
        ("fetchsgd", ("bits=2", "grid=steps", "log=3")),
        ("true_topk", ("bits=4", "grid=float16")),
        ("uncompressed", ("bits=8", "grid=steps")),
        ("uncompressed", ("local.steps=3", "batch_size=2", "optimizer=adamw", "state=keep")),
        ("local_topk", ("local_error=true", "local.epochs=2", "local.momentum=0.9", "state=keep")),
        ("sparse_loco", ("chunk=20", "per_chunk=3", "quantiser=two_bits", "local.steps=2")),
    ],
    ids=str,
)
def test_resumed_equals_uninterrupted(method, sets, stop_at, tmp_path):
    sets = (*sets, "checkpoint_every=2")
    whole = make(method, *sets).execute(tmp_path / "whole")

    def stop(seen):
        if seen.round == stop_at:
            raise StopError

    with pytest.raises(StopError):
        make(method, *sets).execute(tmp_path / "cut", watch=stop)
    result = make(method, *sets).execute(tmp_path / "cut", resume=True)
    assert torch.equal(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    for key in ("value", "train_loss", "test_loss", *TRAFFIC):
        assert result[key] == whole[key]
    timeless = [
        [
            {key: value for key, value in line.items() if not key.startswith("seconds")}
            for line in lines(tmp_path / name)
        ]
        for name in ("cut", "whole")
    ]
    assert timeless[0] == timeless[1]


def test_killed_between_its_last_round_and_its_result(tmp_path):
    """Nothing is left to train or to evaluate; the result is what it would have been."""
    whole = make("uncompressed").execute(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    result = make("uncompressed").execute(tmp_path / "run", resume=True)
    for key in ("value", "train_loss", "test_loss", *TRAFFIC):
        assert result[key] == whole[key]


def command(folder, *more):
    return [
        sys.executable, "-m", "fetchsgd", "train", "tinytask:tiny", "--out", str(folder),
        "--set", "epochs=400", "--set", "checkpoint_every=3", "--set", "eval_every=20", *more,
    ]  # fmt: skip


def test_killed_processes_resume_to_bit_identical_weights(tmp_path):
    """kill -9 at several moments of real processes, then to the end."""
    environment = os.environ | {"PYTHONPATH": TESTS, "OMP_NUM_THREADS": "1"}
    subprocess.run(command(tmp_path / "whole"), check=True, env=environment, capture_output=True)
    kills = 0
    for wait in (0.05, 0.4, 0.9, 0.2):
        process = subprocess.Popen(
            command(tmp_path / "cut", "--resume"),
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        checkpoint = tmp_path / "cut" / checkpoints.FILE
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if checkpoint.exists() and checkpoint.stat().st_mtime_ns != before:
                break
            time.sleep(0.01)
        time.sleep(wait)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= 2
    done = command(tmp_path / "cut", "--resume")
    subprocess.run(done, check=True, env=environment, capture_output=True)
    assert torch.equal(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    results = [json.loads((tmp_path / n / "result.json").read_text()) for n in ("cut", "whole")]
    assert results[0]["download_bytes"] == results[1]["download_bytes"]


def test_a_full_disk_is_a_clear_error_and_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    run = make("fetchsgd", "checkpoint_every=2")
    real, calls = os.fsync, []

    def full(descriptor):
        if "checkpoint" in os.readlink(f"/proc/self/fd/{descriptor}"):
            calls.append(descriptor)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        UserError, match=r"what was there before is untouched\): No space left on device"
    ):
        run.execute(tmp_path / "run")
    monkeypatch.undo()
    found = checkpoints.load_checkpoint(
        tmp_path / "run", run.start(), run.setup.grid.downloads(), torch.device("cpu")
    )
    assert found.training.round >= 2
    assert not list((tmp_path / "run").glob("*.partial"))
    make("fetchsgd", "checkpoint_every=2").execute(tmp_path / "run", resume=True)


def test_a_run_whose_last_checkpoint_cannot_be_written_has_no_result(tmp_path, monkeypatch):
    """Else it would seem to have ended, and its checkpoint would be of an earlier round."""
    make("fetchsgd").execute(tmp_path / "whole")
    real = os.fsync

    def full(descriptor):
        if "checkpoint" in os.readlink(f"/proc/self/fd/{descriptor}"):
            time.sleep(0.2)  # until the run has nothing left to do
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="cannot write .*checkpoint.safetensors"):
        make("fetchsgd").execute(tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()
    monkeypatch.undo()
    make("fetchsgd").execute(tmp_path / "run", resume=True)
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "whole"))


def changed(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: changed(path, -1),  # a number
        lambda path: path.write_bytes(path.read_bytes().replace(b'"round":"9"', b'"round":"8"')),
        lambda path: path.write_bytes(path.read_bytes().replace(b"__metadata__", b"__metadatb__")),
        lambda path: path.write_bytes(path.read_bytes().replace(b"checksum", b"checksun")),
    ],
)
def test_a_checkpoint_in_which_a_byte_has_changed_is_refused(damage, tmp_path):
    make().execute(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    path = tmp_path / "run" / checkpoints.FILE
    before = path.read_bytes()
    damage(path)
    assert path.read_bytes() != before
    with pytest.raises(UserError, match="checkpoint.safetensors is not a checkpoint"):
        make().execute(tmp_path / "run", resume=True)


def test_checkpoints_without_a_checksum_are_read(tmp_path):
    """Those of the version before."""
    make().execute(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    path = tmp_path / "run" / checkpoints.FILE
    before = load_file(path)
    save_file(before, path, {"format": "2", "round": "9", "seconds": "1.0"})
    make().execute(tmp_path / "run", resume=True)
    assert torch.equal(load_file(path)["weights"], before["weights"])


def test_an_unwritable_place_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot create the run folder .*file/run"):
        make().execute(tmp_path / "file" / "run")


def test_a_folder_is_not_overwritten(tmp_path):
    make().execute(tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run; give --resume, or another --out"):
        make().execute(tmp_path / "run")
    with pytest.raises(UserError, match=r"method.k was 20 and is now 10"):
        make("fetchsgd", "k=10").execute(tmp_path / "run", resume=True)
    done = json.loads((tmp_path / "run" / "result.json").read_text())
    assert make().execute(tmp_path / "run", resume=True) == done


def test_a_damaged_checkpoint_is_refused(tmp_path):
    run = make()
    run.execute(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / checkpoints.FILE).write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match="checkpoint.safetensors is not a checkpoint"):
        make().execute(tmp_path / "run", resume=True)


def test_divergence_is_recorded(tmp_path):
    with pytest.raises(DivergedError, match="the loss became .* at round .* of 30; try a lower"):
        make("uncompressed", "peak=1e6", "epochs=10").execute(tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "diverged"
    assert result["value"] is None
    assert result["rounds"] < 30


def test_a_run_that_has_diverged_is_not_resumed(tmp_path):
    for resume in (False, True):
        with pytest.raises(DivergedError, match="diverged at round" if resume else "the loss"):
            make("uncompressed", "peak=1e6", "epochs=10").execute(tmp_path / "run", resume)


def strict_json(path):
    """Without NaN and infinity, which are not JSON."""

    def refuse(word):
        raise AssertionError(f"{word} in {path}")

    return [
        json.loads(line, parse_constant=refuse) for line in path.read_text().split("\n") if line
    ]


@pytest.mark.parametrize("peak", [1e25, 1e6])
def test_a_blow_up_in_the_last_round_is_no_end(peak, tmp_path):
    """Only the weights show it: a round's loss is from before its update."""
    sets = ("epochs=1", "clients_per_round=12", "kind=piecewise")
    tame, wild = (f"points=[[0, {p}], [1, {p}]]" for p in (1e-3, peak))
    make("uncompressed", *sets, tame).execute(tmp_path / "tame")
    with pytest.raises(DivergedError, match="the test loss became .* at round 1 of 1"):
        make("uncompressed", *sets, wild).execute(tmp_path / "wild")
    result = json.loads((tmp_path / "wild" / "result.json").read_text())
    assert (result["status"], result["value"]) == ("diverged", None)
    strict_json(tmp_path / "wild" / "metrics.jsonl")
    json.loads((tmp_path / "wild" / "result.json").read_text(), parse_constant=pytest.fail)


def test_divergence_says_since_when(tmp_path):
    """Calm rounds, then a rate that lets the loss rise until it is hopeless."""
    points = (
        "points=[[0, 0.01], [4, 0.01], [4.3, 1], [5, 10], [6, 100], [7, 1e3], [8, 1e4], [9, 1e6]]"
    )
    with pytest.raises(DivergedError, match=r"rising since round (\d+)") as raised:
        make("uncompressed", "epochs=10", "kind=piecewise", points).execute(tmp_path / "run")
    since = int(re.search(r"since round (\d+)", str(raised.value))[1])
    assert since > 12
    assert json.loads((tmp_path / "run" / "result.json").read_text())["rising_since"] == since


def test_a_checkpoint_with_steps_of_another_size_is_refused(tmp_path):
    """Those of the first release, whose steps depended on the device."""
    make("fetchsgd", "grid=steps").execute(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    path = tmp_path / "run" / checkpoints.FILE
    save_file(load_file(path), path, {"round": "2", "seconds": "1.0"})
    with pytest.raises(UserError, match="of an earlier version, whose steps"):
        make("fetchsgd", "grid=steps").execute(tmp_path / "run", resume=True)


def test_fewer_epochs_are_compression(tmp_path):
    result = make("uncompressed", "epochs=3", "baseline_epochs=12").execute(tmp_path / "run")
    assert result["upload_compression"] == pytest.approx(4.0)
    assert result["download_compression"] > 4.0  # the first round finds nothing new


def test_global_random_state_is_left_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    make().execute(tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)


def test_two_runs_do_not_share_a_folder(tmp_path):
    def intrude(seen):
        if seen.round == 2:
            with pytest.raises(UserError, match="another process .* is training in .*run; wait"):
                make().execute(tmp_path / "run", resume=True)

    make().execute(tmp_path / "run", watch=intrude)
    assert [line["round"] for line in lines(tmp_path / "run")] == [3, 6, 9]


def test_a_checkpoint_goes_on_in_a_longer_run_and_not_in_a_shorter_one(tmp_path):
    """Copied to another folder: the ledger has room for as many rounds as the run has."""
    make("fetchsgd", "epochs=2").execute(tmp_path / "short")
    for name in ("longer", "shorter"):
        (tmp_path / name).mkdir()
        shutil.copy(tmp_path / "short" / checkpoints.FILE, tmp_path / name)
    assert make("fetchsgd", "epochs=4").execute(tmp_path / "longer", resume=True)["rounds"] == 12
    with pytest.raises(UserError, match="the checkpoint is of round 6, and the run has 3"):
        make("fetchsgd", "epochs=1").execute(tmp_path / "shorter", resume=True)
