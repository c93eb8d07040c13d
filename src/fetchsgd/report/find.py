"""Finding runs: in folders, in results files, and each of them once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fetchsgd.report.errors import ReportError
from fetchsgd.report.results import is_results_file, read_results
from fetchsgd.report.runs import UNFINISHED, Run, load_run


def find_runs(sources: Iterable[Path]) -> list[Run]:
    """Every run in or below the folders, and in the `.jsonl` files; each run once.

    A line of a file is the same run as another line or a folder if name, task, method, settings
    and seed are the same. Two folders are two trainings, whatever they are called.
    """
    paths = list(sources)
    folders = [path for path in paths if not is_results_file(path)]
    trained = [load_run(folder) for folder in _run_folders(folders)]
    published = [run for path in paths if is_results_file(path) for run in read_results(path)]
    if not trained and not published:
        names = ", ".join(map(str, paths)) or "no folder given"
        raise ReportError(
            f"{names}: no run folder found; a run folder holds config.toml and metrics.jsonl"
        )
    return _each_once(trained, published)


def _run_folders(folders: Sequence[Path]) -> Iterable[Path]:
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ReportError(f"{folder}: no such folder, and not a .jsonl file of results")
        for config in sorted(folder.rglob("config.toml")):
            if (config.parent / "metrics.jsonl").is_file():
                found.setdefault(config.parent.resolve(), config.parent)
    return found.values()


def _each_once(trained: Sequence[Run], published: Sequence[Run]) -> list[Run]:
    runs = list(trained)
    for line in published:
        same = [run for run in runs if _is_same(run, line)]
        # A folder that is being trained again has less to say than what it said before.
        runs = [run for run in runs if run not in same or run.status != UNFINISHED]
        ended = [run for run in same if run.status != UNFINISHED]
        if not ended:
            runs.append(line)
        elif not any(replace(run, source=line.source) == line for run in ended):
            raise ReportError(
                f"{line.source} and {ended[0].source}: the run {line.name!r} has the same settings "
                "and seed in both but not the same results; give one of them"
            )
    return runs


def _is_same(one: Run, other: Run) -> bool:
    return (one.name, one.task, one.method, one.seed, one.settings) == (
        *(other.name, other.task, other.method, other.seed),
        other.settings,
    )
