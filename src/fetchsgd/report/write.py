"""Writing a report: the page, and its figures beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fetchsgd.errors import UserError, from_os
from fetchsgd.formatting import plural
from fetchsgd.report.groups import Task, group_by_task
from fetchsgd.report.page import render_page
from fetchsgd.report.runs import DIVERGED, FINISHED, UNFINISHED, Run, find_runs


@dataclass(frozen=True)
class ReportSummary:
    """What was written, and of which runs."""

    page: Path
    figures: tuple[Path, ...]
    tasks: tuple[str, ...]
    runs: tuple[Run, ...]
    finished: int
    diverged: int
    unfinished: int

    def __str__(self) -> str:
        counts = f"{self.finished} finished, {self.diverged} diverged, {self.unfinished} unfinished"
        beside = f", and {plural(len(self.figures), 'figure')} beside it" if self.figures else ""
        return f"{plural(len(self.runs), 'run')} ({counts}): {self.page}{beside}"


def write_report(sources: Iterable[Path], out: Path, figures: bool = True) -> ReportSummary:
    """Write the report on all runs in the folders and results files `sources` to the page `out`.

    With `figures`, which needs matplotlib, each task's figures are written beside the page as PNG
    and PDF: `<stem of out>-<task>-upload.png`, and so on for download, overall and curves; those
    of compression once more as the paper counts, `-upload-paper.png`; `-frontiers.png`, where runs
    as in the paper can be compared with low-bit ones; and `-diagnostics.png`, where runs have any.
    """
    runs = find_runs([Path(source) for source in sources])
    tasks = group_by_task(runs)
    stems = dict(zip((task.name for task in tasks), _stems(tasks, out), strict=True))
    if figures:
        _require_matplotlib()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(render_page(tasks, stems if figures else {}), encoding="utf-8")
        written = _write_figures(tasks, stems, out.parent) if figures else []
    except OSError as error:
        raise from_os(f"{out} cannot be written", error) from error
    statuses = [run.status for run in runs]
    return ReportSummary(
        page=out,
        figures=tuple(written),
        tasks=tuple(stems),
        runs=tuple(runs),
        finished=statuses.count(FINISHED),
        diverged=statuses.count(DIVERGED),
        unfinished=statuses.count(UNFINISHED),
    )


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError(
            "matplotlib is not installed: install it, or write the report without figures"
        ) from error


def _write_figures(tasks: list[Task], stems: dict[str, str], folder: Path) -> list[Path]:
    from fetchsgd.report.figures import write_figures

    return [path for task in tasks for path in write_figures(task, folder / stems[task.name])]


def _stems(tasks: list[Task], out: Path) -> list[str]:
    """A file name for each task: its name without characters that are awkward in file names."""
    stems: list[str] = []
    for task in tasks:
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", task.name).strip("-.") or "task"
        stem, number = f"{out.stem}-{safe}", 2
        while stem in stems:
            stem, number = f"{out.stem}-{safe}-{number}", number + 1
        stems.append(stem)
    return stems
