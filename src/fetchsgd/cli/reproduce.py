"""`fetchsgd reproduce`: published rows, run again and compared."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Optional

import torch
import typer
from rich.table import Table

from fetchsgd.cli.output import complain, console, say
from fetchsgd.cli.ranks import refuse_together
from fetchsgd.cli.sweep import Jobs, run_all
from fetchsgd.errors import UserError
from fetchsgd.formatting import format_duration, format_metric, plural
from fetchsgd.report.reproduced import Compared, Verdict
from fetchsgd.report.rows import Row, choose_rows, read_rows
from fetchsgd.runs.files import read_result
from fetchsgd.runs.settings import Made, merge
from fetchsgd.simulation.sweep import Planned, check_run
from fetchsgd.simulation.sweep_jobs import Changed


def reproduce(
    names: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="[NAME...]",
            help="Rows as FILE/NAME, or NAME where one file has it; FILE for all its rows; "
            "patterns with *. Lists the rows without any.",
        ),
    ] = None,
    results: Annotated[
        Path, typer.Option(help="A results file, or a folder of them.", metavar="DIR|FILE.jsonl")
    ] = Path("results"),
    out: Annotated[
        Path | None,
        typer.Option(help="Keep the run folders here, in a folder for each results file."),
    ] = None,
    jobs: Jobs = 1,
    device: Annotated[
        str | None, typer.Option(help="Run on this device, wherever the row was measured.")
    ] = None,
) -> None:
    """Run published rows again with their settings, and compare metric and bytes.

    Says for each whether it is equal to the bit, or within the noise that the published seeds show.
    Exit code 1 if a row differs by more, or cannot be run here.
    """
    rows = read_rows(results)
    if not names:
        _list(rows)
        return
    refuse_together("reproduce")
    chosen = choose_rows(rows, names)
    with _folder(out) as folder:
        compared = _run(chosen, folder, jobs, device)
    for each in compared:
        _show(each)
    _summarise(chosen, compared)


def _list(rows: list[Row]) -> None:
    """A line for each row, to copy a name from."""
    for row in rows:
        run = row.run
        value = format_metric(run.value, run.metric or "") if run.value is not None else run.status
        took = f"{format_duration(run.seconds)} on {run.hardware}"
        say(f"{row.name}  {value}, {took}, commit {run.commit}")
    say(f"{plural(len(rows), 'row')}; 'fetchsgd reproduce FILE/NAME' runs one of them again")


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="fetchsgd-reproduce-") as folder:
        yield Path(folder)


def _run(rows: list[Row], out: Path, jobs: int, device: str | None) -> list[Compared]:
    made: Made = {}
    planned: dict[tuple[str, int | None], list[tuple[Row, Planned]]] = {}
    for row in rows:
        try:
            run = _planned(row, device, made)
        except UserError as error:
            complain(f"{row.name}: cannot be run here: {error}")
        else:
            planned.setdefault((row.file, row.threads), []).append((row, run))
    compared = []
    for (file, threads), pairs in planned.items():
        with _threads(threads, jobs):
            run_all([run for _, run in pairs], out / file, jobs, Changed.REFUSE)
        ended = [(row, read_result(out / file / run.name)) for row, run in pairs]
        compared += [Compared(row, dict(now.values)) for row, now in ended if now is not None]
    return compared


@contextmanager
def _threads(each: int | None, jobs: int) -> Iterator[None]:
    """As many for each run as the row had, on which the order of additions depends."""
    before = torch.get_num_threads()
    if each is not None:
        torch.set_num_threads(each * jobs)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _planned(row: Row, device: str | None, made: Made) -> Planned:
    """The run that the row asks for; a UserError if this machine cannot do it."""
    if row.threads is None and device is None and not torch.cuda.is_available():
        took = format_duration(row.run.seconds)
        raise UserError(
            f"it took {took} on {row.run.hardware}, and torch finds no GPU here; "
            "--device cpu runs it all the same, slowly and not to the bit"
        )
    given = merge(row.settings, {"train": {"device": device or "auto"}})
    return check_run(row.run.name, given, made)


def _show(compared: Compared) -> None:
    console.print()
    say(compared.row.name)
    table = Table("", "published", "now", box=None)
    for line in compared.lines():
        table.add_row(*line)
    console.print(table)
    say(compared.reason)


def _summarise(rows: list[Row], compared: list[Compared]) -> None:
    """The last line, and exit code 1 unless all rows have been had again."""
    counts: dict[Any, int] = {
        verdict: sum(each.verdict is verdict for each in compared) for verdict in Verdict
    }
    counts["not run"] = len(rows) - len(compared)
    told = ", ".join(
        f"{count} differ" if what is Verdict.DIFFERS else f"{count} {what}"
        for what, count in counts.items()
        if count
    )
    console.print()
    say(f"{plural(len(rows), 'row')}: {told}")
    if counts[Verdict.DIFFERS] or counts["not run"]:
        raise typer.Exit(1)
