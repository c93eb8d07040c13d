"""Published rows, found by name: the lines of the files in results/.

A row is called FILE/NAME, as `digits-low-bit/fetchsgd-k500-cols8000-seed0`. NAME alone will do
where one file has it, FILE alone means all its rows, and patterns with * are for many.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fetchsgd.errors import UserError
from fetchsgd.named import did_you_mean
from fetchsgd.report.runs import FINISHED, Run, read_results
from fetchsgd.runs.settings.changes import as_today
from fetchsgd.runs.toml_files import Settings


@dataclass(frozen=True)
class Row:
    """A line of a results file."""

    file: str  # its name without the suffix
    run: Run
    seeds: tuple[Run, ...]  # finished runs of the file that differ from it only in their seed

    @property
    def name(self) -> str:
        return f"{self.file}/{self.run.name}"

    @property
    def record(self) -> dict[str, Any]:
        """All fields of the line."""
        assert self.run.record is not None
        return dict(self.run.record)

    @property
    def settings(self) -> Settings:
        """With which today's program does what was done then."""
        return as_today(self.record["config"])

    @property
    def threads(self) -> int | None:
        """On how many threads of a CPU it was measured, on which the last bits depend; else None.

        What was measured on a GPU would not be the same on a CPU, and take hours.
        """
        found = re.search(r", (\d+) threads$", self.run.hardware or "")
        return int(found[1]) if found else None


def read_rows(place: Path) -> list[Row]:
    """Of a results file, or of all in a folder, in their order."""
    if not place.exists():
        raise UserError(
            f"there are no results at {place}: start from the folder of a checkout, or say with "
            "--results where the .jsonl files are"
        )
    files = [place] if place.is_file() else sorted(place.glob("*.jsonl"))
    if not files:
        raise UserError(f"{place} holds no results: they are files that end in .jsonl")
    return [row for file in files for row in _rows_of(file)]


def choose_rows(rows: list[Row], names: list[str]) -> list[Row]:
    """Those that the names mean, each once and in their order."""
    chosen = {row.name for name in names for row in _meant(rows, name)}
    return [row for row in rows if row.name in chosen]


def _rows_of(file: Path) -> list[Row]:
    runs = read_results(file)
    return [Row(file.stem, run, tuple(_seeds(run, runs))) for run in runs]


def _seeds(run: Run, runs: list[Run]) -> list[Run]:
    def same(other: Run) -> bool:
        alike = (other.task, other.method) == (run.task, run.method)
        return alike and other.settings == run.settings and other.status == FINISHED

    return [other for other in runs if same(other)]


def _meant(rows: list[Row], name: str) -> list[Row]:
    name = name.removeprefix("results/").replace(".jsonl", "")
    found = [row for row in rows if name in (row.name, row.file)]
    if found:
        return found
    found = [row for row in rows if row.run.name == name]
    if len(found) > 1:
        raise UserError(f"{name!r} stands for several rows: {', '.join(row.name for row in found)}")
    found = found or [row for row in rows if fnmatchcase(row.name, name)]
    if not found:
        known = [text for row in rows for text in (row.name, row.run.name, row.file)]
        raise UserError(f"there is no row {name!r} in the results{_hint(name, known)}")
    return found


def _hint(name: str, known: list[str]) -> str:
    hint = did_you_mean(name, known)
    return hint if "did you mean" in hint else "; 'fetchsgd reproduce' alone lists them"
