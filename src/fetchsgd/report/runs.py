"""Runs: what a run is, and how runs are found in run folders and in results files.

A run folder is what a run leaves (`fetchsgd.runs.files`). A results file is made to be published:
it has one line per run that has ended, which is the JSON object of its `result.json` with the lines
of its `metrics.jsonl` in the field `metrics`. A report on it is the same as one on the run folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fetchsgd.errors import UserError, from_os
from fetchsgd.formatting import plural
from fetchsgd.report.settings import Series, compared_settings, method_of, series_of
from fetchsgd.report.traffic import NOTHING_SENT, Traffic, final_traffic, traffic_so_far
from fetchsgd.runs.files import (
    CONFIG,
    METRICS,
    Fields,
    read_about,
    read_config,
    read_json_lines,
    read_metrics,
    read_result,
    run_folders,
    to_json,
    write_atomically,
)

FINISHED, DIVERGED, UNFINISHED = STATUSES = ("finished", "diverged", "unfinished")

# The metrics of runs whose folder is too old to say what it measures, and whether higher is better.
_OLDER_METRICS = {"accuracy": True, "perplexity": False}

_DIAGNOSED = "diagnose_"  # what the names of diagnostics begin with in metrics.jsonl


@dataclass(frozen=True)
class Measurement:
    """One line of metrics.jsonl; bytes count from the beginning of the run."""

    round: int
    epoch: float
    bytes_sent: Mapping[str, int]  # by clients and server together, keyed as Run.traffic
    train_loss: float | None
    metric: float | None  # None on lines without an evaluation
    diagnostics: Mapping[str, float] = field(default_factory=dict)  # what was measured, by name


@dataclass(frozen=True)
class Run:
    """One run. `value` is the last one measured so far if the run is unfinished."""

    source: str  # where it was read: a folder, or a file and the line
    name: str
    status: str  # one of STATUSES
    task: str
    method: str  # as reports call it: FetchSGD's two forms are two methods
    metric: str | None  # None in folders of older versions before the first evaluation
    higher_is_better: bool
    value: float | None
    seed: int | None
    rounds: int
    epochs: float
    seconds: float
    traffic: Mapping[str, Traffic]  # keyed by COUNTS; older runs have no "wire"
    settings: Mapping[str, Any]  # flat: "method.k", "local.epochs"
    curve: tuple[Measurement, ...]
    hardware: str | None = None
    commit: str | None = None
    epsilon: float | None = None  # spent so far, with privacy
    delta: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    # Its line of a results file, if it has ended: result.json, and the metrics as a list.
    record: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def series(self) -> Series:
        return series_of(self.method, self.settings)

    def compression(self, kind: str, count: str) -> float | None:
        """None if it diverged: a run that stops early sends less, but that is no compression."""
        if self.status == DIVERGED:
            return None
        return self.traffic[count].compression[kind] if count in self.traffic else None

    def can_be_drawn(self, kind: str, count: str) -> bool:
        """Whether it is a point in the figure of this kind of compression by this count."""
        known = self.value is not None and self.compression(kind, count) is not None
        return self.status == FINISHED and known


@dataclass(frozen=True)
class ResultsSummary:
    """What was written, and which runs were not."""

    path: Path
    written: int
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        wrote = f"{plural(self.written, 'result')}: {self.path}"
        if not self.left_out:
            return wrote
        verb = "has" if len(self.left_out) == 1 else "have"
        return f"{wrote}; without {', '.join(self.left_out)}, which {verb} not ended"


def find_runs(sources: Iterable[Path]) -> list[Run]:
    """Every run in or below the folders, and in the `.jsonl` files; each run once.

    A line of a file is the same run as another line or a folder if name, task, method, settings
    and seed are the same. Two folders are two runs, whatever their names.
    """
    paths = list(sources)
    files = [path for path in paths if path.suffix == ".jsonl" and not path.is_dir()]
    trained = [load_run(folder) for folder in _folders(path for path in paths if path not in files)]
    published = [run for file in files for run in read_results(file)]
    if not trained and not published:
        names = ", ".join(map(str, paths)) or "no folder given"
        raise UserError(f"{names}: no run folder found; a run folder holds {CONFIG} and {METRICS}")
    return _each_once(trained, published)


def load_run(folder: Path) -> Run:
    """Read one run folder."""
    lines, result = read_metrics(folder), read_result(folder)
    return _unfinished(folder, lines) if result is None else _ended(str(folder), result, lines)


def read_results(path: Path) -> list[Run]:
    """The runs of a results file."""
    runs = [_published(line) for line in read_json_lines(path)]
    if not runs:
        raise UserError(f"{path}: holds no run; a results file has one line per run")
    return runs


def write_results(runs: Iterable[Run], path: Path) -> ResultsSummary:
    """Write the runs that have ended, by name; the same runs give the same bytes."""
    every = list(runs)
    lines = sorted((run.name, to_json(run.record)) for run in every if run.record is not None)
    if not lines:
        raise UserError(f"{path}: not written, since no run has ended")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os(f"{path} cannot be written", error) from error
    write_atomically(path, "".join(line + "\n" for _, line in lines).encode())
    left_out = sorted(run.name for run in every if run.record is None)
    return ResultsSummary(path, len(lines), tuple(left_out))


def _folders(roots: Iterable[Path]) -> Iterable[Path]:
    found: dict[Path, Path] = {}
    for root in roots:
        if not root.is_dir():
            raise UserError(f"{root}: no such folder, and not a .jsonl file of results")
        for folder in run_folders(root):
            found.setdefault(folder.resolve(), folder)
    return found.values()


def _each_once(trained: Sequence[Run], published: Sequence[Run]) -> list[Run]:
    runs = list(trained)
    for line in published:
        same = [run for run in runs if _identity(run) == _identity(line)]
        # A run that is being trained again has less to say than its published result.
        runs = [run for run in runs if run not in same or run.status != UNFINISHED]
        ended = [run for run in same if run.status != UNFINISHED]
        if not ended:
            runs.append(line)
        elif not any(replace(run, source=line.source) == line for run in ended):
            raise UserError(
                f"{line.source} and {ended[0].source}: the run {line.name!r} has the same settings "
                "and seed in both but not the same results; give one of them"
            )
    return runs


def _identity(run: Run) -> tuple[object, ...]:
    return run.name, run.task, run.method, run.seed, run.settings


def _published(line: Fields) -> Run:
    entries = line.items("metrics")
    metrics = [Fields(f"{line.where}, metrics {n}", entry) for n, entry in enumerate(entries, 1)]
    return _ended(line.where, line, metrics)


def _ended(source: str, result: Fields, lines: list[Fields]) -> Run:
    """A run from its result and its metrics, wherever they were read."""
    status, metric, value = result.text("status"), result.text("metric"), _value(result)
    if status not in (FINISHED, DIVERGED):
        raise UserError(
            f"{result.where}: the field 'status' must be 'finished' or 'diverged', got {status!r}"
        )
    return Run(
        source=source,
        name=result.text("name"),
        status=status,
        task=result.text("task"),
        method=method_of(result.text("method"), result.table("config")),
        metric=metric,
        higher_is_better=result.flag("higher_is_better"),
        value=value,
        seed=result.whole("seed"),
        rounds=result.whole("rounds"),
        epochs=result.number("epochs"),
        seconds=result.number("seconds"),
        traffic=final_traffic(result),
        settings=compared_settings(result.table("config")),
        curve=tuple(_measurement(line, metric) for line in lines),
        hardware=result.text("hardware"),
        commit=result.text("commit"),
        epsilon=result.number_if_any("epsilon"),
        delta=result.number_if_any("delta"),
        versions={name: str(version) for name, version in result.table("versions").items()},
        record={**result.values, "metrics": [line.values for line in lines]},
    )


def _unfinished(folder: Path, lines: list[Fields]) -> Run:
    config = read_config(folder)
    method = Fields(f"{config.where}, table 'method'", config.table("method"))
    task, metric, higher_is_better = _task_and_metric(folder, config, lines)
    curve = tuple(_measurement(line, metric) for line in lines)
    measured = [point.metric for point in curve if point.metric is not None]
    last = lines[-1] if lines else None
    seed = config.table("train").get("seed")
    return Run(
        source=str(folder),
        name=folder.name,
        status=UNFINISHED,
        task=task,
        method=method_of(method.text("name"), config.values),
        metric=metric,
        higher_is_better=higher_is_better,
        value=measured[-1] if measured else None,
        seed=seed if isinstance(seed, int) else None,
        rounds=last.whole("round") if last else 0,
        epochs=last.number("epoch") if last else 0.0,
        seconds=last.number("seconds") if last else 0.0,
        traffic=traffic_so_far(last) if last else NOTHING_SENT,
        settings=compared_settings(config.values),
        curve=curve,
        epsilon=last.number_if_any("epsilon") if last else None,
        delta=last.number_if_any("delta") if last else None,
    )


def _task_and_metric(
    folder: Path, config: Fields, lines: list[Fields]
) -> tuple[str, str | None, bool]:
    """The task, its metric, and whether higher is better: as the folder says, if it does."""
    about = read_about(folder)
    if about is not None:
        return about.text("task"), about.text("metric"), about.flag("higher_is_better")
    task = Fields(f"{config.where}, table 'task'", config.table("task")).text("name")
    for metric, higher_is_better in _OLDER_METRICS.items():
        if any(metric in line.values for line in lines):
            return task, metric, higher_is_better
    return task, None, True


def _value(result: Fields) -> float | None:
    value = result.number_or_null("value")
    if result.text("metric") == "accuracy" and value is not None and not 0 <= value <= 1:
        raise UserError(
            f"{result.where}: the field 'value' is an accuracy and must lie in [0, 1], got {value}"
        )
    return value


def _measurement(line: Fields, metric: str | None) -> Measurement:
    return Measurement(
        round=line.whole("round"),
        epoch=line.number("epoch"),
        bytes_sent={count: sent.bytes_sent for count, sent in traffic_so_far(line).items()},
        train_loss=line.number_if_any("train_loss"),
        metric=line.number_if_any(metric) if metric else None,
        diagnostics=_diagnostics(line),
    )


def _diagnostics(line: Fields) -> dict[str, float]:
    names = [name for name in line.values if name.startswith(_DIAGNOSED)]
    found = {name.removeprefix(_DIAGNOSED): line.number_or_null(name) for name in names}
    return {name: number for name, number in found.items() if number is not None}
