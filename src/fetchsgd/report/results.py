"""Results files: runs that have ended, a line each, to be published and drawn again.

A line is the JSON object of a run's `result.json`, with the lines of its `metrics.jsonl` in the
field `metrics`. A report on such a file is the one on the run folders.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fetchsgd.report import text
from fetchsgd.report.errors import ReportError
from fetchsgd.report.files import Fields, read_objects
from fetchsgd.report.runs import Run, ended_run


@dataclass(frozen=True)
class ResultsSummary:
    """What was written, and which runs were not."""

    path: Path
    written: int
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        wrote = f"{text.count(self.written, 'result')}: {self.path}"
        if not self.left_out:
            return wrote
        verb = "has" if len(self.left_out) == 1 else "have"
        return f"{wrote}; without {', '.join(self.left_out)}, which {verb} not ended"


def is_results_file(path: Path) -> bool:
    return path.suffix == ".jsonl" and not path.is_dir()


def read_results(path: Path) -> list[Run]:
    """The runs of a results file."""
    runs = [_run(line) for line in read_objects(path)]
    if not runs:
        raise ReportError(f"{path}: holds no run; a results file has a line for each")
    return runs


def write_results(runs: Iterable[Run], path: Path) -> ResultsSummary:
    """Write those of the runs that have ended, by name; the same runs give the same bytes."""
    # Loads torch, which reading needs not.
    from fetchsgd.runs.checkpoint import write_atomically

    every = list(runs)
    lines = sorted((run.name, json.dumps(run.record)) for run in every if run.record is not None)
    if not lines:
        raise ReportError(f"{path}: not written, since no run has ended")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"{path}: cannot be written ({error})") from error
    write_atomically(path, "".join(line + "\n" for _, line in lines).encode())
    left_out = sorted(run.name for run in every if run.record is None)
    return ResultsSummary(path, len(lines), tuple(left_out))


def _run(line: Fields) -> Run:
    entries = line.items("metrics")
    metrics = [Fields(f"{line.where}, metrics {n}", entry) for n, entry in enumerate(entries, 1)]
    return ended_run(line.where, line, metrics)
