"""Unpacking: archives that want to leave their folder, damaged ones, and many processes at once."""

import io
import tarfile
import threading
from pathlib import Path

import pytest

from fetchsgd.tasks.download import unpack


def archived(path, members):
    """A tar archive with these members: bytes are files, texts are targets of symbolic links."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
    return path


def files_under(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_unpacks_once_and_clears_what_a_killed_process_left(tmp_path):
    archive = archived(tmp_path / "a.tar.gz", {"data/x.bin": b"x", "data/in/y.bin": b"y"})
    (tmp_path / "data.unpacking" / "data").mkdir(parents=True)
    (tmp_path / "data.unpacking" / "data" / "half").write_bytes(b"?")
    folder = unpack(archive, "data")
    assert folder == tmp_path / "data"
    assert files_under(folder) == {"x.bin", "in/y.bin"}
    assert not (tmp_path / "data.unpacking").exists()
    archive.unlink()
    assert unpack(archive, "data") == folder


@pytest.mark.parametrize(
    "evil",
    [
        {"../outside": b"!"},
        {"data/../../outside": b"!"},
        {"data/link": "../..", "data/link/outside": b"!"},
        {"data/link": "/tmp"},
        {"/tmp/outside.bin": b"!"},
    ],
    ids=str,
)
def test_nothing_leaves_the_folder(tmp_path, evil):
    inner = tmp_path / "inner"
    inner.mkdir()
    archive = archived(inner / "a.tar.gz", {"data/x.bin": b"x", **evil})
    with pytest.raises(ValueError, match=f"cannot unpack {archive}"):
        unpack(archive, "data")
    assert files_under(tmp_path) == {"inner/a.tar.gz", "inner/data.lock"}


@pytest.mark.parametrize("damage", ["cut", "no archive", "no folder"])
def test_a_damaged_archive_leaves_no_folder(tmp_path, damage):
    archive = archived(tmp_path / "a.tar.gz", {"data/x.bin": bytes(range(256)) * 1000})
    if damage == "no folder":
        archived(archive, {"other/x.bin": b"x"})
    else:
        whole = archive.read_bytes()
        archive.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"?" * 1000)
    with pytest.raises(ValueError, match="cannot unpack|has no folder data"):
        unpack(archive, "data")
    assert files_under(tmp_path) == {"a.tar.gz", "data.lock"}
    assert not (tmp_path / "data").exists()


def test_many_unpack_at_once(tmp_path):
    names = {f"data/{number}.bin" for number in range(100)}
    archive = archived(tmp_path / "a.tar.gz", dict.fromkeys(names, b"x"))
    seen = []
    threads = [
        threading.Thread(target=lambda: seen.append(files_under(unpack(archive, "data"))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [{Path(name).name for name in names}] * 4
