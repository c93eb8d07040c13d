"""Published archives: downloaded once into the data folder, checked, and unpacked.

The paper's experiments (section 5) use data that their authors publish. Nothing unfinished is ever
taken for whole: a download grows as NAME.partial and an archive is unpacked as NAME.unpacking, and
they get their names when they are complete and checked. Of processes that want the same archive at
once one works and the others wait.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tarfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

ATTEMPTS = 5  # connections that may drop before we give up
PAUSE = 1.0  # seconds between them
TIMEOUT = 30.0  # seconds without a byte
PIECE = 1 << 18
CANNOT_REACH = 416  # HTTP: the range lies outside of the file


def data_folder() -> Path:
    """Where downloads go: FETCHSGD_DATA, or ~/.cache/fetchsgd."""
    return Path(os.environ.get("FETCHSGD_DATA") or "~/.cache/fetchsgd").expanduser().absolute()


def fetch(url: str, sha256: str, size: int, folder: Path) -> Path:
    """The published file of `size` bytes, in the folder; downloaded unless it is there."""
    path = folder / Path(urlsplit(url).path).name
    if path.exists():
        if wrong := _difference(path, sha256, size):
            raise ValueError(
                f"{path} {wrong} as of {url}; delete it to have it downloaded, "
                "or put the published file in its place"
            )
        return path
    with _alone(path):
        if not path.exists():  # while we waited, another process may have finished it
            _download(url, sha256, size, path)
    return path


def _download(url: str, sha256: str, size: int, path: Path) -> None:
    partial = path.with_name(path.name + ".partial")
    by_hand = f"put the published file at {path} by hand, or its content in a folder that "
    by_hand += "task.folder names"
    try:
        _complete(url, size, partial)
    except (OSError, HTTPException) as error:
        # An HTTPError's own words hold the number; another URLError wraps the reason.
        reason = error if isinstance(error, HTTPError) else getattr(error, "reason", error)
        raise ValueError(f"cannot download {url}: {reason}; try again, or {by_hand}") from error
    if wrong := _difference(partial, sha256, size):
        partial.unlink()
        raise ValueError(f"what came from {url} {wrong}; it was deleted; try again, or {by_hand}")
    partial.replace(path)


def _complete(url: str, size: int, partial: Path) -> None:
    """Append to the partial file until it has its size, over as many connections as that takes."""
    done = partial.stat().st_size if partial.exists() else 0
    if done > size:
        done = 0  # not the beginning of this file
    progress = Progress(partial.stem, size)
    try:
        for attempt in range(ATTEMPTS):
            if done == size:
                return
            if attempt:
                time.sleep(PAUSE)
            done, came = _receive(url, size, partial, done, progress)
            if not came:
                break
    finally:
        progress.end()
    if done < size:
        raise ConnectionError(f"the connection ended after {done:,} of {size:,} bytes")


def _receive(url: str, size: int, partial: Path, done: int, progress: Progress) -> tuple[int, bool]:
    """Append what one connection brings: the size of the file now, and whether it grew."""
    response, start = _open(url, done)
    with response:
        if start == 0 and response.length not in (None, size):
            raise ConnectionError(f"it has {response.length:,} bytes there, not {size:,}")
        done = start
        with partial.open("ab" if start else "wb") as file:
            for piece in _pieces(response, size - start):
                file.write(piece)
                done += len(piece)
                progress.show(done)
    return done, done > start


def _open(url: str, done: int) -> tuple[HTTPResponse, int]:
    """A response and where in the file it starts: after what is done if the server can, else 0."""
    if done:
        try:
            response = _request(url, {"Range": f"bytes={done}-"})
        except HTTPError as error:
            if error.code != CANNOT_REACH:
                raise
        else:
            if response.status != 206:
                return response, 0
            if response.getheader("Content-Range", "").startswith(f"bytes {done}-"):
                return response, done
            response.close()
    return _request(url, {}), 0


def _request(url: str, headers: dict[str, str]) -> HTTPResponse:
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()  # it holds the connection
        raise
    return response


def _pieces(response: HTTPResponse, wanted: int) -> Iterator[bytes]:
    """What comes, up to as much as is wanted. However a connection ends, that is the end."""
    while wanted:
        try:
            piece = response.read1(min(wanted, PIECE))
        except (OSError, HTTPException):
            return
        if not piece:
            return
        wanted -= len(piece)
        yield piece


def _difference(path: Path, sha256: str, size: int) -> str:
    """What tells a file from the published one, as the middle of a sentence; else nothing."""
    if (found_size := path.stat().st_size) != size:
        return f"has {found_size} bytes; expected {size}"
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if found == sha256 else f"has SHA-256 {found}; expected {sha256}"


class Progress:
    """A line on stderr: rewritten again and again on a terminal, else a line every tenth."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.rewritten = sys.stderr.isatty()
        self.last = 0

    def show(self, done: int) -> None:
        part = done * (1000 if self.rewritten else 10) // self.size
        if part != self.last:
            text = f"{self.name}: {done / 1e6:.1f} of {self.size / 1e6:.1f} MB"
            print(text, end="\r" if self.rewritten else "\n", file=sys.stderr, flush=True)
        self.last = part

    def end(self) -> None:
        """Leave the line, so that what comes next does not write over it."""
        if self.rewritten and self.last:
            print(file=sys.stderr)


def unpack(archive: Path, name: str) -> Path:
    """The folder `name` of a tar archive, beside the archive; unpacked unless it is there."""
    folder = archive.with_name(name)
    if not folder.is_dir():
        with _alone(folder):
            if not folder.is_dir():
                _unpack(archive, folder)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    temporary = folder.with_name(folder.name + ".unpacking")
    shutil.rmtree(temporary, ignore_errors=True)  # what a process that was killed has left
    try:
        with tarfile.open(archive) as tar:
            _extract(tar, temporary)
        if not (temporary / folder.name).is_dir():
            raise ValueError(f"{archive} has no folder {folder.name}; is it the published one?")
        (temporary / folder.name).rename(folder)
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"cannot unpack {archive}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Files and folders, which is all that published data have; nothing leaves the folder.

    The filters of tarfile do as much, but Python before 3.11.4 has none.
    """
    for member in tar:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise tarfile.ReadError(f"{member.name!r} would be outside of its folder")
        if member.isdir():
            (folder / path).mkdir(parents=True, exist_ok=True)
            continue
        file = tar.extractfile(member) if member.isfile() else None
        if file is None:
            raise tarfile.ReadError(f"{member.name!r} is neither a file nor a folder")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with file, (folder / path).open("wb") as copy:
            shutil.copyfileobj(file, copy)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes from making the same file or folder until we are done.

    The lock is the kernel's, on an empty file NAME.lock that stays. It ends with its process,
    however that ends, so that there are no stale locks to detect; a process id in the file would
    mean nothing to another container or machine that shares the folder.
    """
    try:
        lock = _locked(path)
    except OSError as error:
        raise ValueError(
            f"cannot write to {path.parent}: {error.strerror}; the environment variable "
            "FETCHSGD_DATA may name another folder for downloads, or task.folder one with the data"
        ) from error
    with lock:
        yield


def _locked(path: Path) -> IO[str]:
    import fcntl  # Windows has none, and needs it only here

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(path.name + ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"waiting for another process that makes {path}", file=sys.stderr, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock
