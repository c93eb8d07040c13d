"""How a run stands, from its folder alone, also while another process trains in it.

Nothing here needs torch, or writes anything.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.formatting import format_bytes, format_clock, format_duration, format_metric, plural
from fetchsgd.runs.files import (
    CONFIG,
    METRICS,
    Fields,
    read_about,
    read_config,
    read_metrics,
    read_result,
)
from fetchsgd.runs.lock import is_locked
from fetchsgd.runs.phases import PREFIX as SECONDS

FEDERATION, REJECTED = "federation/", "federation/rejected_"
BY_CLIENT = "federation/rejected_by_client"
TOLD = ("late", "failed", "silent", "resent", "too_few", "refused_steps", "left_out", "resumed")
RECENT = 10  # lines, for the speed
MOST_NAMED = 5  # clients


@dataclass(frozen=True)
class Status:
    """What is known of a run. Counts of a federation are empty for a simulation."""

    folder: str
    state: str  # "training", "stopped", "finished" or "diverged"
    round: int = 0
    rounds: int | None = None  # how many there will be, once a line says how long an epoch is
    metric: str = ""
    value: float | None = None
    loss: float | None = None
    upload_bytes: int = 0
    download_bytes: int = 0
    seconds: float = 0.0
    seconds_per_round: float | None = None  # lately
    silent_for: float | None = None  # seconds since the last line
    phases: dict[str, float] = field(default_factory=dict)
    replies: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)  # by reason
    rejected_by_client: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def left(self) -> float | None:
        """Seconds to the end, at the speed of the last rounds."""
        if self.rounds is None or self.seconds_per_round is None or self.state != "training":
            return None
        return (self.rounds - self.round) * self.seconds_per_round


def read_status(folder: Path) -> Status:
    """How the run in a folder stands, or a sentence."""
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} holds no run: there is no {CONFIG} in it")
    about, result = read_about(folder), read_result(folder)
    path = folder / METRICS
    lines = read_metrics(folder) if path.exists() else []
    ended = None if result is None else result.text("status")
    state = ended or ("training" if is_locked(folder) else "stopped")
    metric = "" if about is None else about.text("metric")
    if not lines:
        return Status(str(folder), state, metric=metric)
    last = lines[-1]
    measured = "measured_" if "measured_upload_bytes" in last.values else "wire_"
    counts = _counts(last)
    return Status(
        folder=str(folder),
        state=state,
        round=last.whole("round"),
        rounds=_rounds(folder, last, result),
        metric=metric,
        value=_newest(lines, metric),
        loss=_newest(lines, "train_loss"),
        upload_bytes=int(last.number_if_any(f"{measured}upload_bytes") or 0),
        download_bytes=int(last.number_if_any(f"{measured}download_bytes") or 0),
        seconds=last.number("seconds"),
        seconds_per_round=_speed(lines[-RECENT - 1 :]),
        silent_for=None if ended else max(time.time() - path.stat().st_mtime, 0.0),
        phases=_named(last, SECONDS),
        replies=counts.get("replies"),
        counts={name: counts[name] for name in TOLD if counts.get(name)},
        rejected={n: int(c) for n, c in _named(last, REJECTED).items() if c},
        rejected_by_client=dict(last.values.get(BY_CLIENT) or {}),
    )


def describe(status: Status) -> str:
    """For a person: a few lines, the most important first."""
    s = status
    of = "" if s.rounds is None else f" of {s.rounds:,}"
    value = "" if s.value is None else f", {s.metric} {format_metric(s.value, s.metric)}"
    loss = "" if s.loss is None else f", loss {s.loss:.4g}"
    found = [f"{s.folder}: {s.state}, round {s.round:,}{of}{value}{loss}"]
    if s.round:
        found.append(_describe_time(s))
        found.append(f"up {format_bytes(s.upload_bytes)}, down {format_bytes(s.download_bytes)}")
    if s.replies is not None:
        told = [f"{count:,} {name.replace('_', ' ')}" for name, count in s.counts.items()]
        found.append(", ".join([f"{s.replies:,} replies accepted", *told]))
        found.append(_describe_rejections(s))
    return "\n".join(found)


def _describe_time(s: Status) -> str:
    told = [f"{format_clock(s.seconds)} so far"]
    if s.seconds_per_round is not None:
        told.append(f"{format_duration(s.seconds_per_round)} a round lately")
    if s.left is not None:
        told.append(f"{format_clock(s.left)} left")
    if s.silent_for is not None:
        told.append(f"the last line is {format_duration(s.silent_for)} old")
    total = sum(s.phases.values())
    shares = [f"{name} {seconds / total:.0%}" for name, seconds in s.phases.items() if total]
    return "; ".join([", ".join(told), *([", ".join(shares)] if shares else [])])


def _describe_rejections(s: Status) -> str:
    total = sum(s.rejected.values())
    if not total:
        return "nothing rejected"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in s.rejected.items())
    text = f"{total:,} rejected ({reasons})"
    worst = sorted(s.rejected_by_client.items(), key=lambda found: -sum(found[1].values()))
    if worst:
        named = ", ".join(f"{name}: {sum(why.values())}" for name, why in worst[:MOST_NAMED])
        more = f" and {plural(len(worst) - MOST_NAMED, 'other')}" if len(worst) > MOST_NAMED else ""
        text += f"; by client {named}{more}"
    return text


def _rounds(folder: Path, last: Fields, result: Fields | None) -> int | None:
    if result is not None:
        return result.whole("rounds")
    epoch = last.number_if_any("epoch")
    epochs = read_config(folder).table("train").get("epochs")
    if not epoch or not isinstance(epochs, int | float):
        return None
    return max(round(epochs * last.whole("round") / epoch), 1)


def _newest(lines: Sequence[Fields], name: str) -> float | None:
    found = (line.number_if_any(name) for line in reversed(lines))
    return next((value for value in found if value is not None), None)


def _speed(lines: Sequence[Fields]) -> float | None:
    if len(lines) < 2:
        return None
    first, last = lines[0], lines[-1]
    rounds = last.whole("round") - first.whole("round")
    took = last.number("seconds") - first.number("seconds")
    return took / rounds if rounds > 0 and took >= 0 else None


def _counts(line: Fields) -> dict[str, int]:
    return {name: int(count) for name, count in _named(line, FEDERATION).items()}


def _named(line: Fields, prefix: str) -> dict[str, float]:
    """The numbers whose names begin so, by what follows."""
    found: dict[str, Any] = {
        name.removeprefix(prefix): value
        for name, value in line.values.items()
        if name.startswith(prefix)
    }
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
