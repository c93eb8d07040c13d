"""Downloads from a local server: whatever breaks, only the published bytes get the file's name."""

import hashlib
import io
import socket
import subprocess
import sys
import time

import pytest
from tasks.archive_server import serving

from fetchsgd.tasks import download
from fetchsgd.tasks.download import data_folder, fetch

CONTENT = bytes(range(256)) * 4000
HALF = len(CONTENT) // 2


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def site():
    with serving(CONTENT) as site:
        yield site


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def get(site, folder):
    """Ask for the file; it must be right, and nothing must be left of the way to it."""
    path = fetch(site.url, sha256(CONTENT), len(CONTENT), folder)
    assert path == folder / "archive.tar.gz"
    assert path.read_bytes() == CONTENT
    assert not list(folder.glob("*.partial"))
    return path


def sentence(site, folder):
    """Ask for the file; the answer must be a sentence that names the URL."""
    with pytest.raises(ValueError, match=site.url) as error:
        fetch(site.url, sha256(CONTENT), len(CONTENT), folder)
    return str(error.value)


def leave_partial(folder, content):
    path = folder / "archive.tar.gz.partial"
    path.write_bytes(content)
    return path


def test_downloads_once(site, tmp_path, capsys):
    folder = tmp_path / "made" / "on the way"
    get(site, folder)
    get(site, folder)
    assert site.requests == [None]
    assert "archive.tar.gz: 1.0 of 1.0 MB\n" in capsys.readouterr().err


def test_one_line_on_a_terminal(site, tmp_path, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    get(site, tmp_path)
    assert terminal.getvalue().endswith("archive.tar.gz: 1.0 of 1.0 MB\r\n")
    assert terminal.getvalue().count("\n") == 1


@pytest.mark.parametrize("unknown_length", [False, True])
def test_goes_on_after_a_dropped_connection(site, tmp_path, unknown_length):
    site.drops = [HALF, 1000]
    site.unknown_length = unknown_length
    get(site, tmp_path)
    assert site.requests == [None, f"bytes={HALF}-", f"bytes={HALF + 1000}-"]


@pytest.mark.parametrize("fault", ["no ranges", "other ranges"])
def test_starts_again_where_the_server_cannot_go_on(site, tmp_path, fault):
    site.ranges = fault != "no ranges"
    site.wrong_ranges = fault == "other ranges"
    leave_partial(tmp_path, b"not the beginning of this file")
    site.drops = [] if site.wrong_ranges else [HALF]
    get(site, tmp_path)


def test_a_server_that_drops_for_ever_gets_a_sentence_and_a_later_call_goes_on(site, tmp_path):
    site.drops = [1000] * 5
    said = sentence(site, tmp_path)
    assert "the connection ended after 5,000 of 1,024,000 bytes" in said
    assert not (tmp_path / "archive.tar.gz").exists()
    get(site, tmp_path)
    assert site.requests[-1] == "bytes=5000-"


def test_a_connection_that_brings_nothing_is_not_tried_again(site, tmp_path):
    site.drops = [0, 0]
    assert "the connection ended after 0 of" in sentence(site, tmp_path)
    assert len(site.requests) == 1


def test_wrong_content_is_deleted(site, tmp_path):
    site.content = CONTENT[:-1] + b"?"
    said = sentence(site, tmp_path)
    assert f"has SHA-256 {sha256(site.content)}; expected {sha256(CONTENT)}; it was deleted" in said
    assert [path.name for path in tmp_path.iterdir()] == ["archive.tar.gz.lock"]


@pytest.mark.parametrize("length", [HALF, 2 * len(CONTENT)])
def test_another_length_is_refused_before_it_is_read(site, tmp_path, length):
    site.content = (CONTENT + CONTENT)[:length]
    kept = leave_partial(tmp_path, b"")
    assert f"it has {length:,} bytes there, not 1,024,000" in sentence(site, tmp_path)
    assert kept.read_bytes() == b""


def test_no_more_is_written_than_the_published_length(site, tmp_path):
    site.content, site.unknown_length = CONTENT + b"and on and on", True
    get(site, tmp_path)


@pytest.mark.parametrize("partial", [b"?" * len(CONTENT), CONTENT[:HALF] + b"?"])
def test_a_damaged_partial_file_costs_one_more_call(site, tmp_path, partial):
    leave_partial(tmp_path, partial)
    assert "it was deleted" in sentence(site, tmp_path)
    get(site, tmp_path)


def test_a_partial_file_that_is_too_long_is_not_continued(site, tmp_path):
    leave_partial(tmp_path, CONTENT + b"?")
    get(site, tmp_path)
    assert site.requests == [None]


def test_a_shorter_file_at_the_server_is_seen_when_going_on(site, tmp_path):
    leave_partial(tmp_path, CONTENT[:HALF])
    site.content = CONTENT[: HALF - 1]
    assert f"it has {HALF - 1:,} bytes there" in sentence(site, tmp_path)
    assert site.requests == [f"bytes={HALF}-", None]


def test_not_found(site, tmp_path):
    site.status = 404
    said = sentence(site, tmp_path)
    assert "HTTP Error 404" in said
    assert f"put the published file at {tmp_path / 'archive.tar.gz'} by hand" in said
    assert "task.folder" in said
    assert len(site.requests) == 1


def test_no_network(site, tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        site.url = f"http://127.0.0.1:{closed.getsockname()[1]}/files/archive.tar.gz"
        said = sentence(site, tmp_path)
    assert "Connection refused" in said
    assert str(tmp_path / "archive.tar.gz") in said
    assert "task.folder" in said


def test_a_file_put_by_hand_is_taken_or_refused_but_not_touched(site, tmp_path):
    path = tmp_path / "archive.tar.gz"
    path.write_bytes(CONTENT)
    get(site, tmp_path)
    path.write_bytes(CONTENT[:HALF])
    assert f"{path} has {HALF} bytes; expected {len(CONTENT)}" in sentence(site, tmp_path)
    path.write_bytes(b"?" * len(CONTENT))
    assert f"{path} has SHA-256 {sha256(b'?' * len(CONTENT))}" in sentence(site, tmp_path)
    assert path.read_bytes() == b"?" * len(CONTENT)
    assert site.requests == []


def test_a_folder_that_cannot_be_written_is_a_sentence(site, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match="cannot write to .*FETCHSGD_DATA.*task.folder"):
        fetch(site.url, sha256(CONTENT), len(CONTENT), tmp_path / "file")


def test_the_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FETCHSGD_DATA", raising=False)
    assert data_folder() == tmp_path / ".cache/fetchsgd"
    monkeypatch.setenv("FETCHSGD_DATA", "~/mine")
    assert data_folder() == tmp_path / "mine"


# --- processes

# download.py needs nothing but the standard library, so that a process of it starts quickly.
CHILD = """
import runpy, sys
from pathlib import Path
module, url, digest, size, folder = sys.argv[1:]
print(runpy.run_path(module)["fetch"](url, digest, int(size), Path(folder)))
"""


@pytest.fixture
def start(site, tmp_path):
    """Starts processes that ask for the file; none outlives the test."""
    children = []

    def start_one():
        given = [site.url, sha256(CONTENT), str(len(CONTENT)), str(tmp_path)]
        command = [sys.executable, "-c", CHILD, download.__file__, *given]
        pipe = subprocess.PIPE
        children.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))
        return children[-1]

    yield start_one
    for child in children:
        with child:
            child.kill()


def test_of_processes_at_once_one_downloads(site, tmp_path, start):
    site.drops, site.stalls = [HALF], True
    children = [start() for _ in range(3)]
    assert site.stalled.wait(20)
    site.released.set()
    said = [child.communicate(timeout=20) for child in children]
    assert [child.returncode for child in children] == [0] * 3, said
    assert [out.strip() for out, _ in said] == [str(tmp_path / "archive.tar.gz")] * 3
    assert len(site.requests) == 2
    get(site, tmp_path)


def test_a_killed_process_leaves_no_lock_and_a_part_to_go_on_from(site, tmp_path, start):
    site.drops, site.stalls = [HALF], True
    child = start()
    assert site.stalled.wait(20)
    partial = tmp_path / "archive.tar.gz.partial"
    while not partial.exists() or partial.stat().st_size == 0:
        assert child.poll() is None
        time.sleep(0.01)
    child.kill()
    child.wait()
    assert not (tmp_path / "archive.tar.gz").exists()
    before = partial.stat().st_size
    get(site, tmp_path)
    assert site.requests == [None, f"bytes={before}-"]
