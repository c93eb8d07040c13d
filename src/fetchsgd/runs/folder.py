"""A run folder as a run writes it: started, logged to, finished, or continued with --resume.

`files` says which files it holds and reads them. TensorBoard's events.* are beside them. A run
without a folder keeps its lines in memory.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fetchsgd.errors import UserError, from_os
from fetchsgd.runs.files import (
    ABOUT,
    CHECKPOINT,
    CONFIG,
    METRICS,
    MODEL,
    RESULT,
    Fields,
    read_metrics,
    read_result,
    to_json,
    write_atomically,
)
from fetchsgd.runs.lock import alone_in
from fetchsgd.runs.toml_files import Settings, write_toml

Line = dict[str, Any]


class NoFolder:
    """Takes the place of a folder where a run leaves nothing on the disk."""

    path = None
    name = "run"

    def __init__(self) -> None:
        self.lines: list[Line] = []

    @property
    def last_line(self) -> Line | None:
        return self.lines[-1] if self.lines else None

    def log(self, line: Line) -> None:
        self.lines.append(line)

    def finish(self, result: Line) -> None:
        """The result is returned to the caller, and kept nowhere else."""

    def close(self) -> None:
        """Nothing is open."""


class RunFolder:
    """Opened for one run; TensorBoard events are written if tensorboard is installed.

    task, metric, higher_is_better: what is trained and measured, so that a run can be read before
        it has ended. A task's own name may differ from the one in the settings, which says where
        the task is to be found.
    comments: what settings mean, by their full names, for the reader of config.toml.
    """

    def __init__(
        self,
        path: Path,
        settings: Settings,
        resume: bool,
        metric: str | None = None,
        higher_is_better: bool = True,
        task: str | None = None,
        comments: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise from_os(f"cannot create the run folder {path}", error) from error
        if (path / CONFIG).exists() and not resume:
            raise UserError(f"{path} already holds a run; give --resume, or another --out")
        write_atomically(path / CONFIG, write_toml(settings, comments).encode())
        if metric is not None:
            about = {
                "task": task or settings["task"]["name"],
                "metric": metric,
                "higher_is_better": higher_is_better,
            }
            write_atomically(path / ABOUT, f"{to_json(about)}\n".encode())
        self._events: Any = None

    @property
    def result(self) -> Line | None:
        """What the run ended with, if it has ended."""
        found = read_result(self.path)
        return None if found is None else dict(found.values)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def lines(self) -> list[Line]:
        """All metrics so far."""
        return [dict(line.values) for line in self._logged()]

    @property
    def last_line(self) -> Line | None:
        """The newest metrics, if there are any."""
        lines = self.lines
        return lines[-1] if lines else None

    def start(self, round: int) -> None:
        """Forget what was logged after the checkpoint from which the run continues."""
        with self._writing():
            (self.path / RESULT).unlink(missing_ok=True)  # of a run that goes on for longer
        kept = [line for line in self._logged() if line.whole("round") <= round]
        log = "".join(f"{to_json(line.values)}\n" for line in kept)
        write_atomically(self.path / METRICS, log.encode())
        if round == 0:
            with self._writing():
                (self.path / CHECKPOINT).unlink(missing_ok=True)
                (self.path / MODEL).unlink(missing_ok=True)
        if importlib.util.find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            with self._writing():
                self._events = SummaryWriter(str(self.path), purge_step=round or None)

    def _logged(self) -> list[Fields]:
        return read_metrics(self.path) if (self.path / METRICS).exists() else []

    def log(self, line: Line) -> None:
        """Add a line to the metrics, and its numbers to TensorBoard.

        The line is on the disk before the checkpoint of its round: a federation counts on from it.
        """
        with self._writing():
            with (self.path / METRICS).open("a") as file:
                file.write(to_json(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
            if self._events is not None:
                for name, number in _numbers(line):
                    self._events.add_scalar(name, number, line["round"])

    def finish(self, result: Line) -> None:
        self.close()  # first: what cannot be written then leaves a run to resume, without a result
        write_atomically(self.path / RESULT, f"{to_json(result, indent=1)}\n".encode())

    def close(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            with self._writing():
                events.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What the system refuses is a sentence, also where TensorBoard's thread has met it."""
        try:
            yield
        except OSError as error:
            raise from_os(f"cannot write to {self.path}", error) from error


def _numbers(line: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, float]]:
    """What can be drawn over rounds; numbers within others are named as folders are."""
    for key, value in line.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{within}{key}/")
        elif key != "round" and isinstance(value, int | float) and math.isfinite(value):
            yield within + key, value


def forget(path: Path) -> None:
    """Remove what a run has left, so that another may take its place; the settings last."""
    with alone_in(path):
        for pattern in (RESULT, METRICS, CHECKPOINT, MODEL, ABOUT, "events.*", CONFIG):
            for file in path.glob(pattern):
                file.unlink()
