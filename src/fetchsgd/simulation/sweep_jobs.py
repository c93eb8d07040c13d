"""Runs of a sweep, one after another or side by side.

Runs that have ended are skipped, runs that were cut off go on, runs that diverge are recorded, and
a run that fails does not keep the others from running. A folder that holds a run with other
settings is never used silently: see `Changed`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO

import torch

from fetchsgd.errors import DivergedError, UserError
from fetchsgd.runs.files import read_result, write_atomically
from fetchsgd.runs.folder import Line, forget
from fetchsgd.runs.older import going_on
from fetchsgd.runs.recorder import Progress, Watch
from fetchsgd.runs.settings import Made, changes, resolve
from fetchsgd.runs.toml_files import read_toml, write_toml
from fetchsgd.simulation.run import Run
from fetchsgd.simulation.sweep import Planned

TOLD = 3  # changed settings that a sentence names
TELLS = "FETCHSGD_TELLS_PROGRESS"  # set for a process that says where it stands, for this one

Seen = Callable[[str, Progress], None]  # where a run of that name stands


class Changed(StrEnum):
    """What to do where a folder holds a run with other settings."""

    REFUSE = "refuse"  # leave it alone, and count the run as not done
    REDO = "redo"  # forget it, and run again
    SKIP = "skip"  # keep it


@dataclass(frozen=True)
class Outcome:
    """How a run of a sweep ended: finished, diverged, skipped, refused or failed."""

    name: str
    status: str
    message: str = ""
    result: Line | None = None  # of a run that has finished, now or before

    @property
    def is_done(self) -> bool:
        return self.status in ("finished", "diverged", "skipped")


@dataclass(frozen=True)
class Job:
    """A run that is to be done. again: forget what its folder holds."""

    run: Planned
    folder: Path
    again: bool


def run_sweep(
    planned: list[Planned],
    out: Path,
    jobs: int,
    done: Callable[[Outcome], None],
    changed: Changed = Changed.REFUSE,
    seen: Seen | None = None,
) -> list[Outcome]:
    """Run all; `done` is called with how each one ended, and `seen` with where it stands."""
    waiting, outcomes = [], []
    for run in planned:
        job = _prepare(run, out / run.name, changed)
        if isinstance(job, Outcome):
            outcomes.append(job)
            done(job)
        else:
            waiting.append(job)
    seen = seen or (lambda _name, _progress: None)
    ended = _run_here(waiting, seen) if jobs == 1 else _run_in_processes(waiting, jobs, seen)
    for outcome in ended:
        outcomes.append(outcome)
        done(outcome)
    return outcomes


def _prepare(run: Planned, folder: Path, changed: Changed) -> Job | Outcome:
    config = folder / "config.toml"
    try:
        run = _as_before(run, folder)
        differing = changes(read_toml(config), run.settings) if config.exists() else []
    except UserError as error:
        return Outcome(run.name, "failed", str(error))
    if differing and changed is not Changed.REDO:
        told = f"{folder} holds a run with other settings: {', '.join(differing[:TOLD])}"
        if len(differing) > TOLD:
            told += f" and {len(differing) - TOLD} more"
        return Outcome(run.name, "skipped" if changed is Changed.SKIP else "refused", told)
    if not differing and (folder / "result.json").exists():
        return Outcome(run.name, "skipped", result=_result(folder))
    return Job(run, folder, again=bool(differing))


def _as_before(run: Planned, folder: Path) -> Planned:
    """With what a folder of an older version means, where the sweep leaves it open."""
    given = going_on(run.given, folder)
    if given is run.given:
        return run
    return replace(run, given=given, settings=resolve(given).settings)


def _result(folder: Path) -> Line | None:
    found = read_result(folder)
    return None if found is None else dict(found.values)


def _run_here(waiting: list[Job], seen: Seen) -> Iterator[Outcome]:
    run = partial(_run, made={}, seen=seen)
    for job in waiting:
        yield _attempt(job, run)


def _run(job: Job, made: Made, seen: Seen) -> Outcome:
    if job.again:
        forget(job.folder)
    run = Run(resolve(job.run.given, made=made))
    result = run.execute(job.folder, resume=True, watch=partial(seen, job.run.name))
    return Outcome(job.run.name, "finished", result=result)


def _attempt(job: Job, run: Callable[[Job], Outcome]) -> Outcome:
    """How it ended. Whatever happens, the other runs go on."""
    try:
        return run(job)
    except DivergedError as error:
        return Outcome(job.run.name, "diverged", str(error))
    except UserError as error:
        return Outcome(job.run.name, "failed", str(error))
    except Exception as error:
        traceback.print_exc()
        return Outcome(job.run.name, "failed", f"{type(error).__name__}: {error}")


def _run_in_processes(waiting: list[Job], jobs: int, seen: Seen) -> Iterator[Outcome]:
    gpus: SimpleQueue[str | None] = SimpleQueue()
    for gpu in spread(visible_gpus(), jobs):
        gpus.put(gpu)
    threads = max(torch.get_num_threads() // jobs, 1)
    run = partial(_run_process, threads=threads, gpus=gpus, seen=seen)
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_attempt, job, run) for job in waiting]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def visible_gpus() -> list[str]:
    """The GPUs that torch sees, as CUDA_VISIBLE_DEVICES names them."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (named.split(",") if named else [str(number) for number in range(count)])[:count]


def spread(gpus: list[str], jobs: int) -> list[str | None]:
    """The GPU of each job, in turn; None where there is nothing to choose."""
    return [gpus[job % len(gpus)] if len(gpus) > 1 else None for job in range(jobs)]


def _run_process(job: Job, threads: int, gpus: SimpleQueue[str | None], seen: Seen) -> Outcome:
    """One `fetchsgd train` of its own, with its share of the cores and of the GPUs."""
    if job.again:
        forget(job.folder)
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    file = job.folder.with_name(f"{job.run.name}.toml")
    write_atomically(file, write_toml(job.run.given).encode())
    command = [sys.executable, "-m", "fetchsgd", "train", str(file), "--resume"]
    threads_of_its_own = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    try:
        with _gpu_for(job, gpus) as gpu, tempfile.TemporaryFile("w+") as errors:
            environment = os.environ | threads_of_its_own | gpu | {TELLS: "1"}
            command += ["--out", str(job.folder)]
            code = _follow(command, environment, errors, partial(seen, job.run.name))
            errors.seek(0)
            told = errors.read()
    finally:
        file.unlink(missing_ok=True)
    if "Traceback" in told:
        print(told, file=sys.stderr, flush=True)
    last = (told.strip().splitlines() or [""])[-1].removeprefix("error: ")
    status = {0: "finished", 3: "diverged"}.get(code, "failed")
    return Outcome(job.run.name, status, last, _result(job.folder) if code == 0 else None)


def _follow(command: list[str], environment: dict[str, str], errors: IO[str], watch: Watch) -> int:
    """The exit code of a process that says by lines of JSON where it stands."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                watch(Progress(**json.loads(line)))
    return process.returncode


@contextmanager
def _gpu_for(job: Job, gpus: SimpleQueue[str | None]) -> Iterator[dict[str, str]]:
    """The environment in which a run sees only its own GPU, if it leaves the choice to us."""
    if job.run.settings["train"]["device"] not in ("auto", "cuda"):
        yield {}
        return
    gpu = gpus.get()
    try:
        yield {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
    finally:
        gpus.put(gpu)
