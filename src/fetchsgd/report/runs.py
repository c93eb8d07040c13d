"""Runs: what a run folder or a line of a results file holds, as one value.

A run folder has `config.toml` and `metrics.jsonl`, and `result.json` once the run has ended. Bytes
and seconds in the metrics count from the beginning of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fetchsgd.report.errors import ReportError
from fetchsgd.report.files import Fields, read_config, read_metrics, read_result
from fetchsgd.report.series import Series, series_of, with_number_settings
from fetchsgd.report.traffic import Traffic, final_traffic, traffic_so_far

FINISHED, DIVERGED, UNFINISHED = STATUSES = ("finished", "diverged", "unfinished")

# The metrics that a line of metrics.jsonl may hold, and whether more is better.
METRICS = {"accuracy": True, "perplexity": False}

# Settings that say which run it is, or where and how it was watched: not what was learned.
_NOT_TELLING = {
    *("task.name", "method.name", "train.seed"),
    *("train.device", "train.eval_every", "train.checkpoint_every"),
    *("train.diagnose", "train.diagnose_every", "train.diagnose_window"),
}

_DIAGNOSED = "diagnose_"  # what the names of diagnostics begin with in metrics.jsonl

_NOTHING_SENT = Fields("a run without metrics", {"upload_bytes": 0, "download_bytes": 0})


@dataclass(frozen=True)
class Measurement:
    """One line of metrics.jsonl. `metric` is None on lines without an evaluation."""

    round: int
    epoch: float
    bytes_sent: Mapping[str, int]  # by clients and server together, keyed as Run.traffic
    train_loss: float | None
    metric: float | None
    diagnostics: Mapping[str, float] = field(default_factory=dict)  # what was measured, by name


@dataclass(frozen=True)
class Run:
    """One run. `value` is the last one measured so far if the run is unfinished."""

    source: str  # where it was read: a folder, or a file and the line
    name: str
    status: str  # one of STATUSES
    task: str
    method: str
    metric: str | None  # None before the first evaluation
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
    versions: Mapping[str, str] = field(default_factory=dict)
    # Its line of a results file, if it has ended: result.json, and the metrics as a list.
    record: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def series(self) -> Series:
        return series_of(self.method, self.settings)

    def compression(self, kind: str, count: str) -> float | None:
        """None if it diverged: what stops early sends less, and that is no compression."""
        if self.status == DIVERGED:
            return None
        return self.traffic[count].compression[kind] if count in self.traffic else None

    def can_be_drawn(self, kind: str, count: str) -> bool:
        """Whether it is a point in the figure of this kind of compression by this count."""
        known = self.value is not None and self.compression(kind, count) is not None
        return self.status == FINISHED and known


def load_run(folder: Path) -> Run:
    """Read one run folder."""
    lines = read_metrics(folder / "metrics.jsonl")
    result = read_result(folder / "result.json")
    if result is None:
        return _unfinished(folder, read_config(folder / "config.toml"), lines)
    return ended_run(str(folder), result, lines)


def ended_run(source: str, result: Fields, lines: list[Fields]) -> Run:
    """A run of what its result.json and its metrics.jsonl hold, wherever they were read."""
    status, metric, value = result.text("status"), result.text("metric"), _value(result)
    if status not in (FINISHED, DIVERGED):
        raise ReportError(
            f"{result.where}: the field 'status' must be 'finished' or 'diverged', got {status!r}"
        )
    return Run(
        source=source,
        name=result.text("name"),
        status=status,
        task=result.text("task"),
        method=result.text("method"),
        metric=metric,
        higher_is_better=result.flag("higher_is_better"),
        value=value,
        seed=result.whole("seed"),
        rounds=result.whole("rounds"),
        epochs=result.number("epochs"),
        seconds=result.number("seconds"),
        traffic=final_traffic(result),
        settings=_settings(result.table("config")),
        curve=tuple(_measurement(line, metric) for line in lines),
        hardware=result.text("hardware"),
        commit=result.text("commit"),
        versions={name: str(version) for name, version in result.table("versions").items()},
        record={**result.values, "metrics": [line.values for line in lines]},
    )


def _unfinished(folder: Path, config: Fields, lines: list[Fields]) -> Run:
    task = Fields(f"{config.where}, table 'task'", config.table("task"))
    method = Fields(f"{config.where}, table 'method'", config.table("method"))
    metric = next((m for m in METRICS if any(m in line.values for line in lines)), None)
    curve = tuple(_measurement(line, metric) for line in lines)
    measured = [point.metric for point in curve if point.metric is not None]
    last = lines[-1] if lines else None
    seed = config.table("train").get("seed")
    return Run(
        source=str(folder),
        name=folder.name,
        status=UNFINISHED,
        task=task.text("name"),
        method=method.text("name"),
        metric=metric,
        higher_is_better=METRICS.get(metric or "accuracy", True),
        value=measured[-1] if measured else None,
        seed=seed if isinstance(seed, int) else None,
        rounds=last.whole("round") if last else 0,
        epochs=last.number("epoch") if last else 0.0,
        seconds=last.number("seconds") if last else 0.0,
        traffic=traffic_so_far(last or _NOTHING_SENT),
        settings=_settings(config.values),
        curve=curve,
    )


def _value(result: Fields) -> float | None:
    value = result.number_or_null("value")
    if result.text("metric") == "accuracy" and value is not None and not 0 <= value <= 1:
        raise ReportError(
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


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    telling = {key: value for key, value in _flat(config) if key not in _NOT_TELLING}
    return with_number_settings(telling)


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
