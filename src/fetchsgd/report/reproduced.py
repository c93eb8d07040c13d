"""Whether a run is what was published: equal to the bit, within the noise of seeds, or neither.

The noise is what the published seeds show. One more seed of the same settings would lie, in 19 of
20 cases, within `t s sqrt(1 + 1 / n)` of the mean of n seeds, where s is their standard deviation
and t comes from Student's distribution. A single seed says nothing about it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev
from typing import Any

from fetchsgd.formatting import UNKNOWN, format_bytes, format_metric, plural
from fetchsgd.report.rows import Row

# Student's t for 1, 2, ... degrees of freedom, two-sided at 95 %; 1.96 for very many.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
# What depends on when and where, not on what was computed.
APART = {"name", "seconds", "commit", "hardware", "versions", "config"}
SHOWN = 3  # fields that a sentence names
BYTES = {"wire_upload_bytes": "bytes up", "wire_download_bytes": "bytes down"}


class Verdict(StrEnum):
    """How today's run compares with the published one."""

    EQUAL = "equal to the bit"
    WITHIN = "within the noise of seeds"
    DIFFERS = "differs"


@dataclass(frozen=True)
class Interval:
    """Where one more seed would lie."""

    low: float
    high: float
    seeds: int


@dataclass(frozen=True)
class Compared:
    """A row, and the result of running it again."""

    row: Row
    now: dict[str, Any]  # as result.json has it

    @property
    def verdict(self) -> Verdict:
        if self.unequal == []:
            return Verdict.EQUAL
        same_end = self.now["status"] == self.row.run.status
        return Verdict.WITHIN if same_end and self._is_within() else Verdict.DIFFERS

    @property
    def unequal(self) -> list[str]:
        """The fields of the result that are not the same, of those that both have."""
        then = self.row.record
        shared = [key for key in then if key in self.now and key not in APART]
        return [key for key in shared if then[key] != self.now[key]]

    def _is_within(self) -> bool:
        if self.row.run.value is None:  # both diverged, at another round
            return True
        return self.interval("value") is not None and not self._beyond()

    def interval(self, field: str) -> Interval | None:
        """Where the published seeds let one expect that field; None of fewer than two seeds."""
        records = [run.record for run in self.row.seeds if run.record]
        values = [float(record[field]) for record in records if field in record]
        if len(values) < 2:
            return None
        freedom = len(values) - 1
        student = STUDENT[freedom - 1] if freedom <= len(STUDENT) else STUDENT[-1]
        half = student * stdev(values) * math.sqrt(1 + 1 / len(values))
        return Interval(fmean(values) - half, fmean(values) + half, len(values))

    @property
    def reason(self) -> str:
        """The verdict, with what it rests on."""
        if self.verdict is Verdict.EQUAL:
            return f"{Verdict.EQUAL}: metric, losses and bytes"
        if self.now["status"] != self.row.run.status:
            return f"{Verdict.DIFFERS}: it {self.row.run.status} then, and {self.now['status']} now"
        if self.row.run.value is None:
            return "both diverged, at another round"
        value = self.interval("value")
        if value is None:
            fields = ", ".join(self.unequal[:SHOWN]) + ", ..." * (len(self.unequal) > SHOWN)
            return (
                f"{Verdict.DIFFERS} ({fields}); one published seed does not say how large the "
                "noise is"
            )
        metric = self.row.run.metric or ""
        least, most = (0.0, 1.0) if metric == "accuracy" else (-math.inf, math.inf)
        ends = (min(max(end, least), most) for end in (value.low, value.high))
        low, high = (format_metric(end, metric) for end in ends)
        expected = f"one more of {plural(value.seeds, 'seed')} would have {low} to {high}"
        if self.verdict is Verdict.WITHIN:
            return f"{Verdict.WITHIN}: {expected}"
        return f"{Verdict.DIFFERS} by more than seeds do: {', '.join(self._beyond())} ({expected})"

    def _beyond(self) -> list[str]:
        """What lies where seeds do not."""
        names = {"value": self.row.run.metric or "value", **BYTES}
        return [told for key, told in names.items() if self._is_beyond(key)]

    def _is_beyond(self, field: str) -> bool:
        then, interval = self.row.record, self.interval(field)
        if interval is None or then.get(field) == self.now[field]:
            return False
        return not interval.low <= self.now[field] <= interval.high

    def lines(self) -> list[tuple[str, str, str]]:
        """What, then and now: for a table."""
        then, metric = self.row.record, self.row.run.metric or "value"
        pairs = [
            (metric, *(format_metric(side["value"], metric) for side in (then, self.now))),
            ("test loss", *(_loss(side.get("test_loss")) for side in (then, self.now))),
            ("rounds", *(f"{side['rounds']:,}" for side in (then, self.now))),
        ]
        pairs += [
            (told, *(_bytes(side.get(key)) for side in (then, self.now)))
            for key, told in BYTES.items()
        ]
        pairs += [(key, str(then.get(key)), str(self.now[key])) for key in ("hardware", "commit")]
        torch = (side.get("versions", {}).get("torch", UNKNOWN) for side in (then, self.now))
        return [*pairs, ("torch", *torch)]


def _loss(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.6g}"


def _bytes(count: int | None) -> str:
    return UNKNOWN if count is None else f"{count:,} ({format_bytes(count)})"
