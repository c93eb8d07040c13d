"""The commands, put together, and their exit codes."""

from __future__ import annotations

import sys
from typing import Annotated

import click
import typer
from typer.core import TyperCommand, TyperGroup

from fetchsgd import __version__
from fetchsgd.cli.lists import methods, tasks
from fetchsgd.cli.output import complain
from fetchsgd.cli.privacy import privacy
from fetchsgd.cli.ranks import exit_code
from fetchsgd.cli.report import report
from fetchsgd.cli.reproduce import reproduce
from fetchsgd.cli.settings import settings
from fetchsgd.cli.status import status
from fetchsgd.cli.sweep import demo, sweep
from fetchsgd.cli.theory import theory
from fetchsgd.cli.train import train
from fetchsgd.errors import DivergedError, UserError, from_os
from fetchsgd.extras import how_to_install
from fetchsgd.runs.settings.meanings import MEANINGS
from fetchsgd.runs.settings.synonyms import ours

EXIT_CODES = """\
0    all is done; a sweep also counts runs that diverged, which it records
1    a sweep in which runs failed, or were refused because their folders hold other settings;
     rows that 'reproduce' could not have again
2    a mistake in what was asked for, with a sentence; also a package that is not installed
3    the run diverged, now or before it was resumed
4    the machine's trouble: a full disk, a file that may not be read, a process that has died
     among several that train together
130  stopped with Ctrl-C"""


class PlainCommand(TyperCommand):
    """A command whose help is plain text, where Typer escapes brackets as if it were markup."""

    def get_help(self, ctx: click.Context) -> str:
        return super().get_help(ctx).replace("\\[", "[")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Settings are no options: whoever writes `--k 500` means `--set k=500`."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            takes_settings = any("--set" in option.opts for option in self.params)
            setting = _setting(error.option_name) if takes_settings else None
            if setting is None:
                raise
            raise click.UsageError(
                f"No such option {error.option_name!r}. It is a setting: --set {setting}=VALUE", ctx
            ) from error


def _setting(option: str) -> str | None:
    """The setting that is meant by an option, as --set takes it."""
    name = option.lstrip("-").replace("-", "_")
    if name in MEANINGS or any(full.endswith(f".{name}") for full in MEANINGS):
        return name
    return ours(name)


class Commands(TyperGroup):
    """All of them; their help ends with the exit codes."""

    def get_help(self, ctx: click.Context) -> str:
        codes = "\n".join(f"  {line}" for line in EXIT_CODES.splitlines())
        return f"{super().get_help(ctx)}\n\nExit codes:\n{codes}\n"


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
COMMANDS = (
    train, sweep, status, report, reproduce, demo, settings, tasks, methods, theory, privacy,
)  # fmt: skip
for command in COMMANDS:
    app.command(cls=PlainCommand)(command)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fetchsgd {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Train one model over many clients whose links are slow."""


def main() -> None:
    """The entry point: sentences instead of tracebacks for mistakes and troubles."""
    try:
        app(standalone_mode=True)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        complain(f"error: {from_os(f'the system refuses{where}', error)}")
        sys.exit(4)
    except UserError as error:
        complain(f"error: {error}")
        sys.exit(exit_code(error))
    except DivergedError as error:
        complain(f"diverged: {error}")
        sys.exit(exit_code(error))
    except ModuleNotFoundError as error:
        sentence = how_to_install(error.name)
        if sentence is None:
            raise
        complain(f"error: {sentence}")
        sys.exit(2)
