"""`fetchsgd report`: figures and tables of runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from fetchsgd.cli.output import say
from fetchsgd.errors import UserError
from fetchsgd.extras import how_to_install


def report(
    sources: Annotated[list[Path], typer.Argument(metavar="DIR|FILE.jsonl...")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl", help="Also write the runs that have ended, a JSON line each."
        ),
    ] = None,
) -> None:
    """Write one self-contained page of figures and a table, and the figures as PNG and PDF.

    DIR is a run folder or a folder of them; FILE.jsonl is a file that --results wrote.
    """
    make_report(sources, out, results)


def make_report(sources: list[Path], out: Path, results: Path | None = None) -> None:
    """The page, and its table on the screen."""
    from fetchsgd.report import summary_table, table_text, write_report, write_results

    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(f"the report draws figures: {how_to_install('matplotlib')}")
    summary = write_report(sources, out)
    say(table_text(summary_table(summary.runs)))
    say(str(summary))
    if results is not None:
        say(str(write_results(summary.runs, results)))
