"""`fetchsgd settings`: every setting with its meaning, default and range."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from fetchsgd.runs.settings.reference import ABOUT, Entry, Table, look_up, reference

WIDTH = 88  # characters of a line
PAGE = """\
# Settings

Written by `fetchsgd settings --markdown`, the same text as `fetchsgd settings` shows and as the
comments in a run folder's `config.toml`.

A setting is given in a file, as `epochs = 24` in the section `[train]`, or on the command line, as
`--set train.epochs=24`, or `--set epochs=24` for short. Later layers win: the defaults below, what
suits the task, the file, `--set`. A section has the settings that are always there, and the options
of the task, method, quantiser or grid that it names; your own parts' options are the fields of
their class. A range counts where the setting has an effect.
"""


def settings(
    name: Annotated[
        str | None, typer.Argument(metavar="[SECTION|SETTING]", help="All of them without.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="As the page docs/settings.md.")
    ] = False,
) -> None:
    """Say what every setting means, its default, and what it may be."""
    if name is not None:
        for table in look_up(name):
            typer.echo(_text(table))
    elif markdown:
        typer.echo(page(), nl=False)
    else:
        for section, about in ABOUT.items():
            typer.echo(f"[{section}]  {about}\n")
            for table in reference(section):
                typer.echo(_text(table))


def _text(table: Table) -> str:
    lines = [f"  with {table.title}:", ""] if table.title else []
    for entry in table.entries:
        lines.append(f"  {entry.name} = {entry.default}")
        lines += textwrap.wrap(str(entry), WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join([*lines, ""])


def page() -> str:
    """The same for the documentation."""
    parts = [PAGE]
    for section, about in ABOUT.items():
        parts.append(f"## {section}\n\n{about[0].upper()}{about[1:]}.\n")
        for table in reference(section):
            title = f"With `{table.title}`:\n\n" if table.title else ""
            rows = "".join(_row(entry) for entry in table.entries)
            parts.append(f"{title}| setting | default | meaning |\n|---|---|---|\n{rows}")
    return "\n".join(parts)


def _row(entry: Entry) -> str:
    default = entry.default if entry.default.startswith("must") else f"`{entry.default}`"
    return f"| `{entry.name}` | {default} | {str(entry).replace('|', chr(92) + '|')} |\n"
