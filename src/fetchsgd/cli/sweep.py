"""`fetchsgd sweep` and `fetchsgd demo`: many runs, and what became of each."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fetchsgd.cli.display import SweepDisplay
from fetchsgd.cli.going_on import STOPPED
from fetchsgd.cli.output import complain, console, say
from fetchsgd.cli.ranks import refuse_together
from fetchsgd.cli.report import make_report
from fetchsgd.formatting import format_metric, format_ratio, plural
from fetchsgd.simulation.sweep import Planned, plan, read_sweep
from fetchsgd.simulation.sweep_jobs import Changed, Outcome, run_sweep

Jobs = Annotated[
    int, typer.Option(min=1, help="How many runs at the same time; several GPUs take turns.")
]
WhenChanged = Annotated[
    Changed,
    typer.Option(
        help="If a folder holds a run with other settings: refuse it and go on with the rest, "
        "redo it from the start, or skip it."
    ),
]


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml")],
    out: Annotated[Path, typer.Option(help="The folder for all run folders.")],
    jobs: Jobs = 1,
    changed: WhenChanged = Changed.REFUSE,
) -> None:
    """Run every combination of settings that a file lists.

    FILE.toml holds settings and [[sweep]] entries. Runs that have ended are skipped, runs that
    were interrupted are resumed.
    """
    refuse_together("sweep")
    _complain(run_all(read_sweep(file), out, jobs, changed))


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the runs and the report.")] = Path(
        "runs/demo"
    ),
    jobs: Jobs = 2,
    changed: WhenChanged = Changed.REFUSE,
) -> None:
    """Compare all five methods on the bundled digits, in about two minutes."""
    refuse_together("demo")
    content = tomllib.loads(files("fetchsgd").joinpath("demo.toml").read_text())
    planned = plan(content, "the demo")
    say(f"{len(planned)} runs on {content['task']['name']}, {jobs} at the same time")
    _complain(run_all(planned, out, jobs, changed))
    make_report([out], out / "report.html")


def run_all(planned: list[Planned], out: Path, jobs: int, changed: Changed) -> list[Outcome]:
    """The runs, with a line for each that ends."""
    ended: list[Outcome] = []
    with SweepDisplay(console, len(planned)) as display:

        def done(outcome: Outcome) -> None:
            ended.append(outcome)
            display.done(outcome.name)
            say(f"[{len(ended)}/{len(planned)}] {outcome.name}: {_how(outcome)}")

        try:
            run_sweep(planned, out, jobs, done, changed, display.seen)
        except KeyboardInterrupt as error:
            complain(
                f"stopped: {len(ended)} of {plural(len(planned), 'run')} are done; the same "
                "command goes on with the rest, each from its last checkpoint"
            )
            raise typer.Exit(STOPPED) from error
    return ended


def _how(outcome: Outcome) -> str:
    """How a run ended, and with what."""
    shows_why = outcome.status in ("failed", "refused", "skipped") and outcome.message
    why = f" ({outcome.message})" if shows_why else ""
    result = outcome.result
    if result is None or result.get("value") is None:
        return f"{outcome.status}{why}"
    overall = result.get("wire_overall_compression")
    ratio = "" if overall is None else f", {format_ratio(overall).replace('×', 'x')} overall"
    value = format_metric(result["value"], result["metric"])
    return f"{outcome.status}{why}, {result['metric']} {value}{ratio}"


def _complain(ended: list[Outcome]) -> None:
    """Exit code 1 if a run is not done."""
    for status, hint in (
        ("failed", ""),
        ("refused", "; --changed redo runs them again, --changed skip keeps what is there"),
    ):
        names = [outcome.name for outcome in ended if outcome.status == status]
        if names:
            complain(f"{status}: {', '.join(names)}{hint}")
    if not all(outcome.is_done for outcome in ended):
        raise typer.Exit(1)
