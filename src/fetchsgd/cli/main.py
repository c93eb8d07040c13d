"""The commands. Exit codes: 0, 2 for a user's mistake, 3 for a run that diverged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from fetchsgd.cli.display import format_bytes, format_seconds, watching
from fetchsgd.cli.theory import theory
from fetchsgd.errors import DivergedError, UserError
from fetchsgd.methods import METHODS
from fetchsgd.runs.budget import choose, parse_budget
from fetchsgd.runs.settings import METHOD, Config, merge, parse_assignments, resolve
from fetchsgd.runs.sweep import Outcome, Planned, plan, read_sweep, run_sweep
from fetchsgd.runs.toml_files import Settings, read_toml
from fetchsgd.simulate.run import Run
from fetchsgd.tasks import TASKS, task_options

app = typer.Typer(
    help="Train one model over many clients whose links are slow.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
console = Console()
errors = Console(stderr=True)

Setting = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting, such as method.k=500; repeatable."
    ),
]


@app.command()
def train(
    what: Annotated[
        str, typer.Argument(metavar="TASK|FILE.toml", help="A task, or a file of settings.")
    ],
    method: Annotated[
        str | None, typer.Option(help="fetchsgd unless the file says otherwise.")
    ] = None,
    settings: Setting = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="100x|BYTES", help="What a client may send a round; chooses cols and bits."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; runs/TASK-METHOD-N by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint.")
    ] = False,
) -> None:
    """Train one model and leave a run folder."""
    given, assignments = _given(what, method), settings or []
    config = resolve(given, assignments)
    if budget is not None:
        config = _within(budget, config, given, assignments)
    if resume and out is None:
        raise UserError("--resume needs --out: which run is to go on?")
    folder = out or _fresh_folder(config)
    run = Run(config)
    _introduce(run, folder)
    with watching(console, folder.name, config.task.metric) as watch:
        result = run.execute(folder, resume, watch)
    _tell(result, folder)


def _within(budget: str, config: Config, given: Settings, assignments: list[str]) -> Config:
    """The same settings but for those that a budget decides."""
    dim = sum(parameter.numel() for parameter in config.task.model().parameters())
    bytes = parse_budget(budget, dim)
    chosen = choose(config.method, dim, bytes, config.method_options.get("rows", 1))
    names = [f"{section}.{key}={v}" for section, keys in chosen.items() for key, v in keys.items()]
    own = merge(given, parse_assignments(assignments, config.settings))
    for section, keys in chosen.items():
        for key in keys:
            if key in own.get(section, {}):
                raise UserError(f"--budget chooses {section}.{key}: leave one of the two out")
    _say(f"budget of {bytes:,} bytes ({4 * dim / bytes:.3g}x): {', '.join(names)}")
    return resolve(given, [*assignments, *names])


def _given(what: str, method: str | None) -> Settings:
    given = read_toml(Path(what)) if what.endswith(".toml") else {"task": {"name": what}}
    if "sweep" in given:
        raise UserError(f"{what} is a sweep; use 'fetchsgd sweep {what} --out DIR'")
    return merge(given, {"method": {"name": method}}) if method else given


def _fresh_folder(config: Config) -> Path:
    number = 1
    task = config.task.name.replace("/", "_").replace(":", "_")
    while (folder := Path("runs") / f"{task}-{config.method}-{number}").exists():
        number += 1
    return folder


def _introduce(run: Run, folder: Path) -> None:
    per_round = run.sampler.per_round
    _say(
        f"{run.config.task.name}: {run.sampler.num_clients:,} clients, {per_round} a round, "
        f"{run.rounds:,} rounds, {run.model.dim:,} weights, {run.config.method} on {run.device}"
    )
    for note in run.method.notes:
        _say(f"note: {note}")
    _say(f"run folder: {folder}")


def _tell(result: dict[str, Any], folder: Path) -> None:
    def times(name: str) -> str:
        value = result[f"{name}_compression"]
        return "nothing sent" if value is None else f"{value:.3g}x"

    _say(
        f"{result['metric']} {result['value']:.4f} after {result['rounds']} rounds in "
        f"{format_seconds(result['seconds'])}"
    )
    for count, prefix in (("on the wire", "wire_"), ("as the paper counts", "")):
        up, down = (format_bytes(result[f"{prefix}{way}_bytes"]) for way in ("upload", "download"))
        _say(
            f"{count}: {times(f'{prefix}upload')} up ({up}), "
            f"{times(f'{prefix}download')} down ({down}), {times(f'{prefix}overall')} overall"
        )
    _say(f"results in {folder / 'result.json'}")


@app.command()
def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.toml", help="Settings with [[sweep]] entries.")
    ],
    out: Annotated[Path, typer.Option(help="The folder for all run folders.")],
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side.")] = 1,
) -> None:
    """Run a grid or a list of settings; what has ended is skipped, what was cut off goes on."""
    _sweep(read_sweep(file), out, jobs)


def _sweep(planned: list[Planned], out: Path, jobs: int) -> None:
    ended: list[Outcome] = []
    columns = (BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("runs", total=len(planned))

        def done(outcome: Outcome) -> None:
            ended.append(outcome)
            text = f"[{len(ended)}/{len(planned)}] {outcome.name}: {outcome.status}"
            why = f" ({outcome.message})" if outcome.status == "failed" else ""
            _say(text + why)
            bar.advance(task)

        run_sweep(planned, out, jobs, done)
    failed = [outcome.name for outcome in ended if outcome.status == "failed"]
    if failed:
        errors.print(f"failed: {', '.join(failed)}", highlight=False)
        raise typer.Exit(1)


def _say(text: str) -> None:
    console.print(escape(text), highlight=False, soft_wrap=True)


@app.command()
def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR|FILE.jsonl...",
            help="Run folders, folders of them, or files that --results wrote.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl", help="Also write the runs that have ended, a JSON line each."
        ),
    ] = None,
) -> None:
    """Write one self-contained page of figures and a table, and the figures as PNG and PDF."""
    _report(sources, out, results)


def _report(sources: list[Path], out: Path, results: Path | None = None) -> None:
    from fetchsgd.report import summary_table, table_text, write_report, write_results

    summary = write_report(sources, out)
    _say(table_text(summary_table(summary.runs)))
    _say(str(summary))
    if results is not None:
        _say(str(write_results(summary.runs, results)))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the runs and the report.")] = Path(
        "runs/demo"
    ),
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side.")] = 2,
) -> None:
    """Compare all five methods on the bundled digits, in about two minutes."""
    import tomllib
    from importlib.resources import files

    content = tomllib.loads(files("fetchsgd").joinpath("demo.toml").read_text())
    planned = plan(content, "the demo")
    _say(f"{len(planned)} runs on {content['task']['name']}, {jobs} side by side")
    _sweep(planned, out, jobs)
    _report([out], out / "report.html")


@app.command()
def tasks() -> None:
    """List the tasks and their options."""
    table = Table("task", "what", "options", box=None)
    for name, function in TASKS.items():
        options = ", ".join(f"{key}={value!r}" for key, value in task_options(function).items())
        table.add_row(name, (function.__doc__ or "").strip().splitlines()[0], options)
    console.print(table)
    console.print(
        "or a function of your own: package.module:function (see examples/custom_task.py)"
    )


@app.command()
def methods() -> None:
    """List the methods and their options."""
    table = Table("method", "what", "options", box=None)
    for name, kind in METHODS.items():
        options = [
            key if default is None else f"{key}={default!r}"
            for key, default in METHOD.options(name).items()
        ]
        module = sys.modules[kind.__module__].__doc__ or ""
        table.add_row(name, module.strip().splitlines()[0], ", ".join(options))
    console.print(table)


app.command()(theory)


def main() -> None:
    """The entry point: sentences instead of tracebacks for a user's mistakes."""
    try:
        app(standalone_mode=True)
    except UserError as error:
        errors.print(f"error: {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except DivergedError as error:
        errors.print(f"diverged: {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(3)
