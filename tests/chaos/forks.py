"""Processes that are ended with SIGKILL: after some seconds, or at one of their own writes.

A parent that has imported everything and computed nothing forks a child for each piece of work, so
that a hundred deaths take minutes. A write has four moments, each of which leaves something else on
the disk: half of the new file beside the old one, all of it but not forced to the disk, all of it
on the disk, and in its place. A line that is added to a log has the same moments. Between two
writes a child is killed by its parent's clock.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import stat
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

LONGEST = 600.0  # seconds of a child: others may use the machine, too
STAGES = ("half", "written", "synced", "replaced")


@dataclass(frozen=True)
class Death:
    """When a process dies: at a stage of its n-th write, or after some seconds."""

    write: int | None = None
    stage: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.write is None:
            return f"after {self.seconds:.3f} s"
        return f"write {self.write}, {self.stage}"


def drawn(random: Random, writes: int, seconds: float) -> Death:
    """Half of them at a write, half at any time of a run of this many seconds."""
    if random.random() < 0.5:
        return Death(random.randrange(max(writes, 1)), random.choice(STAGES))
    return Death(seconds=random.uniform(0, seconds))


class Writes:
    """Counts the atomic writes of this process, and ends it at one of them."""

    def __init__(self, death: Death | None) -> None:
        self.death, self.count = death, 0
        self.fsync, self.replace = os.fsync, Path.replace

    def watch(self) -> None:
        counted = self

        def fsync(descriptor: int) -> None:
            kind = os.fstat(descriptor).st_mode
            if stat.S_ISREG(kind):
                counted.at("half", descriptor)
                counted.at("written")
            counted.fsync(descriptor)
            if stat.S_ISREG(kind) and _appends(descriptor):
                counted.in_place()

        def replace(path: Path, target: Any) -> Any:
            counted.at("synced")
            found = counted.replace(path, target)
            counted.in_place()
            return found

        os.fsync, Path.replace = fsync, replace  # type: ignore[assignment,method-assign]

    def in_place(self) -> None:
        """The end of one write."""
        self.at("replaced")
        self.count += 1

    def at(self, stage: str, descriptor: int | None = None) -> None:
        death = self.death
        if death is None or death.write != self.count or death.stage != stage:
            return
        if descriptor is not None:
            os.ftruncate(descriptor, _half(descriptor))
        os.kill(os.getpid(), signal.SIGKILL)


def _appends(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND)


def _half(descriptor: int) -> int:
    """Where a file ends of which half was written; of a log, half of the last line."""
    size = os.fstat(descriptor).st_size
    if not _appends(descriptor):
        return size // 2
    content = Path(f"/proc/self/fd/{descriptor}").read_bytes()
    return (content.rfind(b"\n", 0, -1) + 1 + size) // 2


def fork(work: Callable[[], None], death: Death | None = None, log: Path | None = None) -> int:
    """Do it in a child; its words go to the log. Returns its process id."""
    with warnings.catch_warnings():  # of threads, which the child does not use
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        output = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.dump_traceback_later(LONGEST - 10, file=2)  # where it hangs
        Writes(death).watch()
        work()
        code = 0
    except BaseException:  # whatever it was, a child must not go on as its parent
        traceback.print_exc()
    finally:
        os._exit(code)


def outcome(child: int, death: Death | None = None) -> str:
    """How a child ends: `done`, `killed`, `failed`, or `hung`.

    It is killed by us where its death has seconds.
    """
    limit = time.monotonic() + LONGEST
    kill_at = time.monotonic() + death.seconds if death and death.write is None else limit
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        if time.monotonic() >= min(kill_at, limit):
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            break
        time.sleep(0.001)
    if os.WIFSIGNALED(status):
        return "killed" if time.monotonic() < limit else "hung"
    return "done" if os.WEXITSTATUS(status) == 0 else "failed"
