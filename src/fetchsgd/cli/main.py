"""The commands, put together, and their exit codes.

0   all is done; a sweep also counts runs that diverged, which it records
1   a sweep in which runs failed, or were refused because their folders hold other settings
2   a mistake in what was asked for, with a sentence; also a package that is not installed
3   the run diverged, now or before it was resumed
"""

from __future__ import annotations

import sys

import click
import typer
from typer.core import TyperCommand

from fetchsgd.cli.lists import methods, tasks
from fetchsgd.cli.output import complain
from fetchsgd.cli.privacy import privacy
from fetchsgd.cli.report import report
from fetchsgd.cli.sweep import demo, sweep
from fetchsgd.cli.theory import theory
from fetchsgd.cli.train import train
from fetchsgd.errors import DivergedError, UserError
from fetchsgd.extras import how_to_install


class PlainCommand(TyperCommand):
    """A command whose help is plain text, where Typer escapes brackets as if it were markup."""

    def get_help(self, ctx: click.Context) -> str:
        return super().get_help(ctx).replace("\\[", "[")


app = typer.Typer(
    help="Train one model over many clients whose links are slow.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (train, sweep, report, demo, tasks, methods, theory, privacy):
    app.command(cls=PlainCommand)(command)


def main() -> None:
    """The entry point: sentences instead of tracebacks for a user's mistakes."""
    try:
        app(standalone_mode=True)
    except UserError as error:
        complain(f"error: {error}")
        sys.exit(2)
    except DivergedError as error:
        complain(f"diverged: {error}")
        sys.exit(3)
    except ModuleNotFoundError as error:
        sentence = how_to_install(error.name)
        if sentence is None:
            raise
        complain(f"error: {sentence}")
        sys.exit(2)
