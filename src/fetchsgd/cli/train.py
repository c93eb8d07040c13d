"""`fetchsgd train`: one run, from a task or a file of settings to a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from fetchsgd.cli.display import watching
from fetchsgd.cli.going_on import STOPPED, settings_of, what_is_left, where_it_stands
from fetchsgd.cli.output import complain, console, say
from fetchsgd.cli.ranks import together
from fetchsgd.errors import UserError, from_os
from fetchsgd.formatting import UNKNOWN, format_bytes, format_clock, format_ratio
from fetchsgd.ranks import LostError, Ranks
from fetchsgd.runs.checkpoint import need_safetensors
from fetchsgd.runs.endpoint import Endpoint, Newest, served
from fetchsgd.runs.recorder import Progress, Watch
from fetchsgd.runs.settings import Config, merge
from fetchsgd.runs.toml_files import Settings, read_toml
from fetchsgd.simulation import Run
from fetchsgd.simulation.prepare import Prepared, prepare
from fetchsgd.tasks import TASKS

Setting = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting, such as method.cols=4000; repeatable."
    ),
]


def train(
    what: Annotated[str, typer.Argument(metavar="TASK|FILE.toml|RUN")],
    method: Annotated[
        str | None,
        typer.Option(help="fetchsgd by default; your own class as package.module:Class."),
    ] = None,
    settings: Setting = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="paper|sums|messages|diloco",
            help="Settings that belong together: the published method; for a server that sees "
            "only sums; for one that sees each message; for few workers with many local steps.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="100x|BYTES",
            help="The most that a client may send per round; chooses how fine levels are, columns "
            "or k. Without a method, the preset 'messages'.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; runs/TASK-METHOD-N by default.")
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(
            help="The same as --set train.epochs. With --resume it may be more than before, where "
            "the learning rates of the rounds that are done would have been the same."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the last checkpoint in RUN, or in --out."),
    ] = False,
    metrics_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Numbers for Prometheus, on 127.0.0.1; 0 is off."),
    ] = 0,
) -> None:
    """Train one model and leave a run folder.

    TASK is the name of a task, or your own function as package.module:function. FILE.toml holds
    settings, one section each for the task, the method and so on. RUN is a run folder, whose
    settings are in it: 'fetchsgd train RUN --resume' goes on with it.

    Several processes share the clients: torchrun --nproc-per-node=4 -m fetchsgd train ...
    """
    need_safetensors()
    with together() as ranks:
        _train(
            ranks, what, method, settings or [], preset, budget, out, epochs, resume, metrics_port
        )


def _train(
    ranks: Ranks,
    what: str,
    method: str | None,
    assignments: list[str],
    preset: str | None,
    budget: str | None,
    out: Path | None,
    epochs: float | None,
    resume: bool,
    metrics_port: int,
) -> None:
    if resume and out is None:
        if method or preset or budget:
            raise UserError(
                "a run goes on with its own settings: leave --method, --preset and --budget out"
            )
        out, given = Path(what), settings_of(Path(what), epochs)
    else:
        given = _given(what, method, preset)
        assignments = [*assignments, *([] if epochs is None else [f"train.epochs={epochs}"])]
    prepared = prepare(
        given,
        assignments,
        preset=preset,
        budget=budget,
        resumed=out if resume else None,
        ranks=ranks,
    )
    run = prepared.run
    if not ranks.is_first:
        _follow(run, ranks, out, resume)
        return
    folder = out or _fresh_folder(run.config)
    ranks.first_says(str(folder))
    _introduce(prepared, folder)
    if resume:
        say(where_it_stands(folder, run.setup.rounds))
    try:
        with (
            served(metrics_port) as endpoint,
            watching(console, folder.name, run.config.task.metric) as watch,
        ):
            result = run.execute(folder, resume, _both(watch, endpoint, run))
    except KeyboardInterrupt as error:
        complain(what_is_left(folder, run.setup.rounds))
        raise typer.Exit(STOPPED) from error
    except LostError as error:
        raise LostError(f"{error}; {what_is_left(folder, run.setup.rounds)}") from error
    _tell(result, folder)


def _both(watch: Watch, endpoint: Endpoint | None, run: Run) -> Watch:
    """The display, and the endpoint if there is one."""
    if endpoint is None:
        return watch
    newest = Newest(run.config.task.metric)
    endpoint.sources.append(newest.numbers)

    def tell(seen: Progress) -> None:
        newest(seen)
        watch(seen)

    return tell


def _follow(run: Run, ranks: Ranks, out: Path | None, resume: bool) -> None:
    """A process that has its share of the work, and says nothing of it."""
    folder = Path(ranks.first_says(str(out)))
    try:
        run.execute(folder, resume)
    except KeyboardInterrupt as error:
        raise typer.Exit(STOPPED) from error
    except LostError as error:
        raise LostError(f"{error}; to go on: fetchsgd train {folder} --resume") from error


def _given(what: str, method: str | None, preset: str | None) -> Settings:
    if Path(what).is_dir() and what not in TASKS:
        raise UserError(f"{what} is a folder; to go on with the run in it, add --resume")
    if Path(what).is_file() and not what.endswith(".toml"):
        raise UserError(f"{what} is a file, but the name of one with settings must end in .toml")
    given = read_toml(Path(what)) if what.endswith(".toml") else {"task": {"name": what}}
    if "sweep" in given:
        raise UserError(f"{what} is a sweep; use 'fetchsgd sweep {what} --out DIR'")
    if preset is not None and method is not None:
        raise UserError("--preset chooses the method: leave --method out, or the preset")
    return merge(given, {"method": {"name": method}}) if method else given


def _fresh_folder(config: Config) -> Path:
    """A folder that did not exist before: it is made here, so that no other run takes it."""
    name = f"{config.task.name}-{config.method}".replace("/", "_").replace(":", "_")
    number = 1
    while True:
        folder = Path("runs") / f"{name}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise from_os(f"cannot create the run folder {folder}", error) from error
        else:
            return folder


def _introduce(prepared: Prepared, folder: Path) -> None:
    run, setup = prepared.run, prepared.run.setup
    say(
        f"{run.config.task.name}: {setup.sampler.num_clients:,} clients, "
        f"{setup.sampler.per_round} a round, {setup.rounds:,} rounds, "
        f"{setup.model.dim:,} weights, {run.config.method} on {run.device}"
    )
    for note in prepared.notes:
        say(note)
    say(f"run folder: {folder}")


def _tell(result: dict[str, Any], folder: Path) -> None:
    """How the run ended, also one that had ended before it was resumed."""
    value = UNKNOWN if result["value"] is None else f"{result['value']:.4f}"
    say(
        f"{result['metric']} {value} after {result['rounds']} rounds in "
        f"{format_clock(result['seconds'])}"
    )
    if "epsilon" in result:
        say(f"privacy: epsilon {result['epsilon']:.4g} at delta {result['delta']:g}")
    if "stopped" in result:
        say(result["stopped"])
    for count, prefix in (("on the wire", "wire_"), ("as the paper counts", "")):
        say(f"{count}: {_traffic(result, prefix)}")
    say(f"results in {folder / 'result.json'}")


def _traffic(result: dict[str, Any], prefix: str) -> str:
    def times(name: str) -> str:
        value = result[f"{prefix}{name}_compression"]
        return "nothing sent" if value is None else format_ratio(value).replace("×", "x")

    up, down = (format_bytes(result[f"{prefix}{way}_bytes"]) for way in ("upload", "download"))
    return f"{times('upload')} up ({up}), {times('download')} down ({down}), " + (
        f"{times('overall')} overall"
    )
