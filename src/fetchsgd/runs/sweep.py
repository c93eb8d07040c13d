"""Many runs from one file: the paper's grids.

A sweep file is a run file with entries [[sweep]]. Each entry sets keys, `section.key = value`; a
list of values makes every combination with the other lists of that entry:

    [train]
    epochs = 24
    [[sweep]]
    "method.name" = "fetchsgd"
    "method.k" = [500, 2000]
    "method.cols" = [4000, 8000]
    [[sweep]]
    "method.name" = "fedavg"
    "train.epochs" = [6, 12]

Runs that have ended are skipped, runs that were cut off go on, runs that diverge are recorded.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fetchsgd.errors import DivergedError, UserError
from fetchsgd.runs.environment import choose_device
from fetchsgd.runs.files import write_atomically
from fetchsgd.runs.settings import Made, merge, resolve
from fetchsgd.runs.setup import make_method
from fetchsgd.runs.toml_files import Settings, read_toml, write_toml
from fetchsgd.simulate.run import Run
from fetchsgd.vector import FlatModel


@dataclass(frozen=True)
class Planned:
    """A run of a sweep: its folder's name, and its settings before they are resolved."""

    name: str
    given: Settings


@dataclass(frozen=True)
class Outcome:
    """How a run of a sweep ended: "finished", "diverged", "skipped" or "failed"."""

    name: str
    status: str
    message: str = ""


def read_sweep(path: Path) -> list[Planned]:
    """All runs of a sweep file, each checked, so that mistakes show before any work starts."""
    return plan(read_toml(path), str(path))


def plan(content: dict[str, Any], where: str) -> list[Planned]:
    entries = content.get("sweep")
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{where} has no [[sweep]] entries; for a single run use 'fetchsgd train'")
    base = {section: values for section, values in content.items() if section != "sweep"}
    planned = [run for entry in entries for run in _expand(base, entry, where)]
    names = [run.name for run in planned]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{where} has two runs {name!r}; they differ in nothing")
    _check(planned, where)
    return planned


def _check(planned: list[Planned], where: str) -> None:
    """Everything that can be known to fail. Data is read, and a model made, once for each task."""
    made: Made = {}
    dims: dict[int, int] = {}
    for run in planned:
        try:
            config = resolve(run.given, made=made)
            choose_device(config.train.device)
            task = config.task
            if id(task) not in dims:
                dims[id(task)] = FlatModel(task.model()).dim
            make_method(config, dims[id(task)])
        except UserError as error:
            raise UserError(f"{where}, run {run.name!r}: {error}") from error


def _expand(base: Settings, entry: dict[str, Any], where: str) -> Iterator[Planned]:
    for key in entry:
        if key.count(".") != 1:
            raise UserError(f'{where}: write {key!r} in [[sweep]] as "section.key" in quotes')
    lists = {key: value if isinstance(value, list) else [value] for key, value in entry.items()}
    for values in itertools.product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        given = merge(base)
        for key, value in chosen.items():
            section, name = key.split(".")
            given = merge(given, {section: {name: value}})
        yield Planned(_name(given, chosen), given)


def _name(given: Settings, chosen: dict[str, Any]) -> str:
    """The method, and what the entry sets: fetchsgd-k500-cols4000."""
    parts = [str(given.get("method", {}).get("name", "fetchsgd"))]
    for key, value in chosen.items():
        section, name = key.split(".")
        if key == "method.name":
            continue
        label = f"local_{name}" if section == "local" else name
        shown = f"{value:g}" if isinstance(value, float) else f"{value}"
        parts.append(f"{label}{shown}" if isinstance(value, int | float) else f"{label}-{shown}")
    return "-".join(parts).replace("/", "_").replace(":", "_")


def run_sweep(
    planned: list[Planned],
    out: Path,
    jobs: int,
    done: Callable[[Outcome], None],
) -> list[Outcome]:
    """Run all; `done` hears how each one ended."""
    waiting, outcomes = [], []
    for run in planned:
        if (out / run.name / "result.json").exists():
            outcomes.append(Outcome(run.name, "skipped"))
            done(outcomes[-1])
        else:
            waiting.append(run)
    results = _run_here(waiting, out) if jobs == 1 else _run_in_processes(waiting, out, jobs)
    for outcome in results:
        outcomes.append(outcome)
        done(outcome)
    return outcomes


def _run_here(waiting: list[Planned], out: Path) -> Iterator[Outcome]:
    made: Made = {}
    for run in waiting:
        try:
            Run(resolve(run.given, made=made)).execute(out / run.name, resume=True)
        except DivergedError as error:
            yield Outcome(run.name, "diverged", str(error))
        else:
            yield Outcome(run.name, "finished")


def _run_in_processes(waiting: list[Planned], out: Path, jobs: int) -> Iterator[Outcome]:
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_run_process, run, out, jobs) for run in waiting]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _run_process(run: Planned, out: Path, jobs: int) -> Outcome:
    """One `fetchsgd train` of its own, with its share of the cores."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{run.name}.toml"
    write_atomically(file, write_toml(run.given).encode())
    command = [sys.executable, "-m", "fetchsgd", "train", str(file), "--resume"]
    threads = str(max(torch.get_num_threads() // jobs, 1))
    ended = subprocess.run(
        [*command, "--out", str(out / run.name)],
        env=os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        capture_output=True,
        text=True,
    )
    file.unlink()
    last = (ended.stderr.strip().splitlines() or [""])[-1]
    status = {0: "finished", 3: "diverged"}.get(ended.returncode, "failed")
    return Outcome(run.name, status, last)
