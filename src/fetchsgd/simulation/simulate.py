"""`fetchsgd.simulate`: the whole simulator as a function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from fetchsgd.errors import DivergedError, UserError
from fetchsgd.extras import how_to_install
from fetchsgd.named import in_memory
from fetchsgd.ranks import joined
from fetchsgd.runs.files import CONFIG
from fetchsgd.runs.recorder import Progress, Watch
from fetchsgd.runs.settings import as_settings
from fetchsgd.runs.trained_model import load_model
from fetchsgd.simulation.prepare import prepare
from fetchsgd.simulation.result import Result
from fetchsgd.simulation.run import Ended, Run

BAR = 20  # characters


def simulate(
    task: Any = "digits",
    method: Any = None,
    *,
    preset: str | None = None,
    budget: str | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: bool | Callable[[Progress], None] = False,
    **settings: Any,
) -> Result:
    """Train one model over simulated clients: what `fetchsgd train` does, as a function.

    In a program that torchrun has started, all its processes train this one model together, and
    each has the result.

    Args:
        task: the name of a task, a `Task`, a function that returns one, or a dictionary of its
            name and its options.
        method: the name of a method, a dictionary of its name and its options, or a method object
            or class of your own; "fetchsgd" by default.
        preset: settings that belong together, "paper", "sums" or "messages".
        budget: the most that a client may send per round, as "100x" or "250kB"; without a method
            and a preset the preset "messages" serves.
        folder: where the run leaves its files; nothing is written without one.
        resume: go on from the last checkpoint in the folder, or start there if it is empty.
        progress: True for notes and a bar, or a function that is called with a `Progress` every
            round.
        settings: every setting of the command line by the same name: `epochs=4`, `k=500`,
            `seed=1`, `device="cpu"`; sections as dictionaries, `schedule={"peak": 0.05}`; parts
            also as objects, `quantiser=fetchsgd.Step(tau=8)`.

    Returns:
        Metrics, bytes and the trained model.

    Raises:
        UserError: a setting is wrong; the sentence says which and what would be right.
        DivergedError: the loss has blown up; its `result` holds the history until then.

    >>> import fetchsgd as fs
    >>> result = fs.simulate("digits", "fetchsgd", epochs=0.5, k=1000, schedule={"peak": 0.05})
    >>> result.metric, result.rounds, len(result.history)
    ('accuracy', 6, 1)
    """
    if preset is not None and method is not None:
        raise UserError("preset chooses the method: leave one of the two out")
    if resume and folder is None:
        raise UserError("resume=True needs folder: which run is to go on?")
    path = None if folder is None else Path(folder)
    if path is not None and not resume and (path / CONFIG).exists():
        raise UserError(f"{path} already holds a run; give resume=True, or another folder")
    written = as_settings(task, method, settings)
    with in_memory(written.objects), joined() as ranks:
        prepared = prepare(
            written.given,
            written.assignments,
            preset=preset,
            budget=budget,
            resumed=path if resume else None,
            ranks=ranks,
        )
        _check_dim(written.dim, prepared.run)
        if progress is True and ranks.is_first:
            print(*prepared.notes, sep="\n", end="\n" * bool(prepared.notes), file=sys.stderr)
        return _train(prepared.run, path, resume, _watch(progress))


def _train(run: Run, folder: Path | None, resume: bool, watch: Watch | None) -> Result:
    try:
        ended = run.complete(folder, resume, watch)
    except DivergedError as error:
        if isinstance(error.result, Ended):
            error.result = Result.of(error.result.summary, error.result.lines, None, folder)
        raise
    except ModuleNotFoundError as error:
        if sentence := how_to_install(error.name):
            error.add_note(sentence)
        raise
    except KeyboardInterrupt as stopped:
        stopped.add_note(_where_it_stopped(folder))
        raise
    return Result.of(ended.summary, ended.lines, _model(run, ended, folder), folder)


def _model(run: Run, ended: Ended, folder: Path | None) -> nn.Module:
    if ended.weights is not None:
        return run.setup.model.copy_with(ended.weights)
    assert folder is not None  # the run had ended before
    return load_model(folder, run.setup.model.copy_with(run.setup.origin))


def _where_it_stopped(folder: Path | None) -> str:
    if folder is None:
        return "The run had no folder, so nothing of it is left; give one to be able to resume it."
    return f"simulate(..., folder={str(folder)!r}, resume=True) goes on from the last checkpoint."


def _check_dim(dim: int | None, run: Run) -> None:
    if dim is not None and dim != run.setup.model.dim:
        raise UserError(
            f"the method is for {dim} weights, but the task's model has {run.setup.model.dim}; "
            "give the method as a dictionary, or as a class, to have that filled in"
        )


def _watch(progress: bool | Callable[[Progress], None]) -> Watch | None:
    if callable(progress):
        return progress
    return _bar if progress else None


def _bar(seen: Progress) -> None:
    """One line on stderr, written over and over."""
    full = round(BAR * seen.round / seen.rounds)
    value = "" if seen.metric is None else f"  {seen.metric:.4f}"
    end = "\n" if seen.round == seen.rounds else ""
    line = f"\r{'#' * full}{'.' * (BAR - full)} {seen.round}/{seen.rounds}  loss {seen.loss:.4f}"
    print(f"{line}{value}", end=end, file=sys.stderr, flush=True)
