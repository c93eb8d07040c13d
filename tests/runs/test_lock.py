"""Run folders belong to one process at a time."""

import errno
import os
import subprocess
import sys

import pytest

from fetchsgd.errors import UserError
from fetchsgd.runs import lock
from fetchsgd.runs.lock import alone_in

HOLD = """
import sys
from pathlib import Path
from fetchsgd.runs.lock import alone_in
with alone_in(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_refused_until_the_first_one_has_died(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        sentence = rf"another process \({holder.pid}\) is training in .*run; .* another --out"
        with pytest.raises(UserError, match=sentence), alone_in(tmp_path / "run"):
            pass
        holder.kill()
    with alone_in(tmp_path / "run"):
        assert (tmp_path / "run" / lock.FILE).read_text() == f"{os.getpid()}\n"


def test_the_same_process_does_not_train_twice_in_a_folder(tmp_path):
    refused = pytest.raises(UserError, match="or stop it")
    with alone_in(tmp_path), refused, alone_in(tmp_path, "or stop it"):
        pass
    with alone_in(tmp_path):
        pass


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    refused = pytest.raises(UserError, match="cannot create the run folder .*file/run")
    with refused, alone_in(tmp_path / "file" / "run"):
        pass


def test_a_disk_without_locks_is_told_and_used(tmp_path, monkeypatch):
    def refuse(file):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "_lock", refuse)
    told = pytest.warns(UserWarning, match="cannot be locked .No locks available")
    with told, alone_in(tmp_path):
        pass
