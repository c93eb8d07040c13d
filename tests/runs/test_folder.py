"""Run folders: what one process writes, another reads, also after a crash."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fetchsgd.errors import MachineError, UserError
from fetchsgd.runs.files import (
    read_about,
    read_config,
    read_metrics,
    read_result,
    run_folders,
    to_json,
    write_atomically,
)
from fetchsgd.runs.folder import RunFolder

SETTINGS = {"task": {"name": "tiny"}, "train": {"seed": 3, "device": "auto"}}


def lines_of(path):
    return [fields.values for fields in read_metrics(path)]


@pytest.fixture
def folder(tmp_path):
    opened = RunFolder(tmp_path / "run", SETTINGS, resume=False)
    opened.start(0)
    yield opened
    opened.close()


def test_what_is_written_is_read(folder):
    folder.log({"round": 1, "loss": 0.1})
    folder.log({"round": 2, "loss": 1e-9})
    assert read_config(folder.path).values == SETTINGS
    assert lines_of(folder.path) == [{"round": 1, "loss": 0.1}, {"round": 2, "loss": 1e-9}]
    assert read_result(folder.path) is None
    assert folder.result is None
    folder.finish({"value": 0.5})
    assert read_result(folder.path).values == folder.result == {"value": 0.5}
    assert list(run_folders(folder.path.parent)) == [folder.path]


@pytest.fixture
def synced(monkeypatch):
    """What is forced to the disk, in its order: files by name, and folders as such."""
    real, found = os.fsync, []

    def fsync(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        found.append("folder" if is_folder else name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_file_is_on_the_disk_and_so_is_its_name(tmp_path, synced):
    write_atomically(tmp_path / "a", b"new")
    assert synced == ["a.partial", "folder"]


def test_a_line_of_metrics_is_on_the_disk(folder, synced):
    folder.log({"round": 1})
    assert synced == ["metrics.jsonl"]


def test_what_cannot_be_removed_does_not_hide_what_went_wrong(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(MachineError, match="cannot write .*untouched.: Read-only file system"):
        write_atomically(tmp_path / "a", b"new")


@pytest.mark.parametrize("call", ["add_scalar", "close"])
def test_what_tensorboard_cannot_write_is_a_sentence_and_leaves_no_result(call, folder):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    assert isinstance(folder._events, writer)
    real = getattr(folder._events, call)
    setattr(folder._events, call, full)
    events = folder._events
    with pytest.raises(MachineError, match="cannot write to .*run: No space left on device"):
        folder.log({"round": 1, "loss": 0.5}) if call == "add_scalar" else folder.finish({})
    assert folder.result is None
    setattr(events, call, real)
    events.close()


def test_tensorboard_has_every_number_also_rejections_by_client(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    by_client = {"3": {"norm": 2, "shape": 1}, "5": {"norm": 4}}
    folder.log({"round": 7, "loss": 0.5, "test_loss": math.nan, "rejected_by_client": by_client})
    folder.close()
    events = accumulator.EventAccumulator(str(folder.path))
    events.Reload()
    found = {
        name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]
    }
    assert found == {
        "loss": [(7, 0.5)],
        "rejected_by_client/3/norm": [(7, 2.0)],
        "rejected_by_client/3/shape": [(7, 1.0)],
        "rejected_by_client/5/norm": [(7, 4.0)],
    }


def test_every_file_stays_valid_json(folder):
    """What diverges leaves NaN and infinity, which are not JSON."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    folder.log({"round": 1, "loss": math.nan, "test_loss": math.inf})
    folder.finish({"value": -math.inf, "federation": {"counts": [1.5, math.nan]}})
    log = (folder.path / "metrics.jsonl").read_text()
    assert json.loads(log, parse_constant=refuse) == {"round": 1, "loss": None, "test_loss": None}
    result = json.loads((folder.path / "result.json").read_text(), parse_constant=refuse)
    assert result == {"value": None, "federation": {"counts": [1.5, None]}}


@pytest.mark.parametrize("cut", [1, 2, 10, 21])
def test_a_line_that_a_crash_cut_off_is_gone_and_a_whole_one_stays(folder, cut):
    """The last line lacks its end, or only the character after it."""
    folder.log({"round": 1, "loss": 0.25})
    folder.log({"round": 2, "loss": 0.125})
    path = folder.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    whole = [1, 2] if cut == 1 else [1]
    assert [line["round"] for line in lines_of(folder.path)] == whole
    assert folder.last_line["round"] == whole[-1]
    folder.start(2)
    folder.log({"round": 3, "loss": 0.5})
    assert [line["round"] for line in lines_of(folder.path)] == [*whole, 3]


def test_starting_forgets_what_came_after_the_checkpoint_and_no_more(folder):
    for number in range(1, 5):
        folder.log({"round": number, "loss": 1 / (3 * number)})
    before = (folder.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    folder.start(3)
    assert (folder.path / "metrics.jsonl").read_bytes() == b"".join(before[:3])


def test_a_log_that_is_broken_is_a_sentence(folder):
    (folder.path / "metrics.jsonl").write_text('{"round"\n{"round": 2}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 1: not valid JSON"):
        folder.start(2)
    (folder.path / "metrics.jsonl").write_text('{"loss": 2}\n')
    with pytest.raises(UserError, match=r"line 1: the field 'round' is missing"):
        folder.start(2)


def test_a_folder_says_what_its_run_measures(tmp_path):
    RunFolder(tmp_path, SETTINGS, False, "squared_error", higher_is_better=False)
    about = {"task": "tiny", "metric": "squared_error", "higher_is_better": False}
    assert read_about(tmp_path).values == about
    RunFolder(tmp_path, SETTINGS, True, "squared_error", higher_is_better=False, task="sensors")
    assert read_about(tmp_path).values == about | {"task": "sensors"}


def test_a_folder_of_an_older_version_does_not_say_it(folder):
    assert read_about(folder.path) is None


@pytest.mark.parametrize(
    "value", ['two\nlines and a "quote"', "tab\t", "back\\slash", "naïve ×", "DEL \x7f"]
)
def test_any_string_survives_in_the_settings(tmp_path, value):
    settings = {"task": {"name": "tiny", "path": value}}
    RunFolder(tmp_path, settings, resume=False)
    assert read_config(tmp_path).values == settings
    RunFolder(tmp_path, settings, resume=True)


def test_settings_that_are_not_text_are_a_sentence(tmp_path):
    (tmp_path / "config.toml").write_bytes(b'[task]\nname = "\xff"\n')
    with pytest.raises(UserError, match=r"config\.toml is not valid TOML"):
        read_config(tmp_path)


def test_json_is_one_line_unless_told_otherwise():
    assert to_json({"a": [1, 2.5, "x"], "b": True}) == '{"a": [1, 2.5, "x"], "b": true}'
    assert to_json({"a": 1}, indent=1) == '{\n "a": 1\n}'


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match="what was there before is untouched"):
        write_atomically(tmp_path / "there", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_reading_needs_no_torch():
    code = "import fetchsgd.report, fetchsgd.runs.folder, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
