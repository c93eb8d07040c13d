"""One process per run folder: two that train in the same folder would mix up their files.

The lock is the operating system's, on the file `lock` in the folder. It ends with its process,
however that ends, so there are no stale locks; the file itself stays.
"""

from __future__ import annotations

import errno
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fetchsgd.errors import UserError, from_os

FILE = "lock"
BUSY = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
PATIENCE = 5.0  # seconds, while others do nothing but ask

if sys.platform == "win32":
    import msvcrt

    AWAY = 1 << 30  # of the process id, which others must be able to read

    def _lock(file: IO[str]) -> None:
        file.seek(AWAY)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

    def _ask(file: IO[str]) -> None:
        time.sleep(0.1)  # there are no shared locks: who asks has it for an instant
        _lock(file)
        file.seek(AWAY)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _ask(file: IO[str]) -> None:
        """Fails where a process trains; any number may ask at the same time."""
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)


def _lock_soon(file: IO[str]) -> None:
    """Who asks keeps others from the lock for an instant, but not from asking."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return _lock(file)
        except OSError as error:
            if error.errno not in BUSY or time.monotonic() > end:
                raise
        _ask(file)
        time.sleep(0.005)


@contextmanager
def alone_in(folder: Path, or_else: str = "or give another --out") -> Iterator[None]:
    """Make the folder and keep other processes out; `or_else` ends the sentence that they get."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / FILE).open("a+")
    except OSError as error:
        raise from_os(f"cannot create the run folder {folder}", error) from error
    with file:
        try:
            _lock_soon(file)
        except OSError as error:
            if error.errno in BUSY:
                raise UserError(_busy(folder, file, or_else)) from error
            # Some network disks have no locks. That is no reason not to train.
            warnings.warn(
                f"{folder} cannot be locked ({error.strerror}): let only one process train in it",
                stacklevel=3,
            )
        file.seek(0)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process trains there now; where disks have no locks, nobody seems to."""
    try:
        with (folder / FILE).open() as file:
            _ask(file)
    except OSError as error:
        return error.errno in BUSY
    return False


def _busy(folder: Path, file: IO[str], or_else: str) -> str:
    file.seek(0)
    process = file.read().strip()
    return (
        f"another process{process and f' ({process})'} is training in {folder}; "
        f"wait until it has ended, {or_else}"
    )
