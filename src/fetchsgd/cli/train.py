"""`fetchsgd train`: one run, from a task or a file of settings to a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from fetchsgd.cli.display import watching
from fetchsgd.cli.output import console, say
from fetchsgd.errors import UserError
from fetchsgd.formatting import UNKNOWN, format_bytes, format_clock, format_ratio
from fetchsgd.runs.budget import choose, parse_budget
from fetchsgd.runs.older import going_on
from fetchsgd.runs.settings import Config, merge, parse_assignments, parse_names, resolve
from fetchsgd.runs.settings.presets import preset as find_preset
from fetchsgd.runs.toml_files import Settings, read_toml
from fetchsgd.simulate.run import Run
from fetchsgd.vector import FlatModel

Setting = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting, such as method.k=500; repeatable."
    ),
]


def train(
    what: Annotated[str, typer.Argument(metavar="TASK|FILE.toml")],
    method: Annotated[
        str | None,
        typer.Option(help="fetchsgd by default; your own class as package.module:Class."),
    ] = None,
    settings: Setting = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="paper|sums|messages",
            help="Settings that belong together: the published method; for a server that sees "
            "only sums; for one that sees each message.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="100x|BYTES",
            help="The most that a client may send per round; chooses columns, k and bits.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; runs/TASK-METHOD-N by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")
    ] = False,
) -> None:
    """Train one model and leave a run folder.

    TASK is the name of a task, or your own function as package.module:function. FILE.toml holds
    settings, one section each for the task, the method and so on.
    """
    given, assignments = _given(what, method, preset), settings or []
    if resume and out is None:
        raise UserError("--resume needs --out: which run is to go on?")
    if resume and out is not None:
        given = going_on(merge(given, parse_names(assignments)), out)
    config = resolve(given, assignments)
    if budget is not None:
        config = _within(budget, config, given, assignments)
    run = Run(config)
    folder = out or _fresh_folder(config)
    _introduce(run, folder)
    with watching(console, folder.name, config.task.metric) as watch:
        result = run.execute(folder, resume, watch)
    _tell(result, folder)


def _within(budget: str, config: Config, given: Settings, assignments: list[str]) -> Config:
    """The same settings but for those that a budget decides."""
    dim = FlatModel(config.task.model()).dim
    bytes = parse_budget(budget, dim)
    chosen = choose(config.method, dim, bytes, config.method_options.get("rows", 1))
    names = [f"{section}.{key}={v}" for section, keys in chosen.items() for key, v in keys.items()]
    own = merge(given, parse_assignments(assignments, config.settings))
    for section, keys in chosen.items():
        for key in keys:
            if key in own.get(section, {}):
                raise UserError(f"--budget chooses {section}.{key}: leave one of the two out")
    say(f"budget of {bytes:,} bytes ({4 * dim / bytes:.3g}x): {', '.join(names)}")
    return resolve(given, [*assignments, *names])


def _given(what: str, method: str | None, preset: str | None) -> Settings:
    given = read_toml(Path(what)) if what.endswith(".toml") else {"task": {"name": what}}
    if "sweep" in given:
        raise UserError(f"{what} is a sweep; use 'fetchsgd sweep {what} --out DIR'")
    if preset is not None and method is not None:
        raise UserError("--preset chooses the method: leave --method out, or the preset")
    if preset is not None:
        return merge(find_preset(preset), given)
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
            raise UserError(f"cannot create the run folder {folder}: {error.strerror}") from error
        else:
            return folder


def _introduce(run: Run, folder: Path) -> None:
    setup = run.setup
    say(
        f"{run.config.task.name}: {setup.sampler.num_clients:,} clients, "
        f"{setup.sampler.per_round} a round, {setup.rounds:,} rounds, "
        f"{setup.model.dim:,} weights, {run.config.method} on {run.device}"
    )
    for note in [*run.method.notes, *(run.private.notes if run.private else [])]:
        say(f"note: {note}")
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
