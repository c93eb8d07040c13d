"""Runs that are stopped and go on: what is in their folder, in sentences."""

from __future__ import annotations

from pathlib import Path

from fetchsgd.errors import UserError
from fetchsgd.runs.checkpoint import saved_round
from fetchsgd.runs.files import CONFIG, read_result
from fetchsgd.runs.longer import with_epochs
from fetchsgd.runs.settings.changes import as_today
from fetchsgd.runs.toml_files import Settings, read_toml

STOPPED = 130  # the exit code that shells give to a program that Ctrl-C has ended


def settings_of(folder: Path, epochs: float | None) -> Settings:
    """Those with which the run in a folder goes on, for so many epochs if that is said."""
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"--resume needs the folder of a run, and {folder} holds none (no {CONFIG}); "
            "give that folder, or a task or file and --out"
        )
    written = as_today(read_toml(folder / CONFIG))
    return written if epochs is None else with_epochs(written, epochs)


def where_it_stands(folder: Path, rounds: int) -> str:
    """From which round a run goes on."""
    done = read_result(folder)
    if done is not None and done.whole("rounds") >= rounds:
        return "the run has ended before; this is its result:"
    saved = saved_round(folder)
    if saved is None:
        return f"nothing is saved in {folder}: the run starts at round 1 of {rounds:,}"
    return f"going on after round {saved:,} of {rounds:,}"


def what_is_left(folder: Path, rounds: int) -> str:
    """What Ctrl-C has left, and how to go on."""
    saved = saved_round(folder)
    if saved is None:
        return (
            f"stopped before the first checkpoint (see train.checkpoint_every), so nothing is "
            f"saved; to start again: fetchsgd train {folder} --resume"
        )
    return (
        f"stopped; round {saved:,} of {rounds:,} is saved. To go on from there: "
        f"fetchsgd train {folder} --resume"
    )
