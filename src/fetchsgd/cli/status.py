"""`fetchsgd status`: how runs stand, also while they train."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fetchsgd.cli.output import say
from fetchsgd.errors import UserError
from fetchsgd.runs.files import run_folders
from fetchsgd.runs.status import describe, read_status


def status(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...")],
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object for each run, for programs.")
    ] = False,
) -> None:
    """Say how runs stand: round, quality, replies, rejections, bytes, where the time goes.

    RUN is a run folder, or a folder of them. It may be of a run that is training: nothing is
    written there.
    """
    found = [run for folder in folders for run in _runs(folder)]
    for run in found:
        stands = read_status(run)
        say(json.dumps(asdict(stands)) if as_json else describe(stands))


def _runs(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    return list(run_folders(folder)) or [folder]
