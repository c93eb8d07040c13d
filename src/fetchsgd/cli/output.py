"""Where the commands write: sentences for a person, on the screen."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

console = Console()
errors = Console(stderr=True)


def say(text: str) -> None:
    """One line, however long, as it is."""
    console.print(escape(text), highlight=False, soft_wrap=True)


def complain(text: str) -> None:
    """The same where errors go."""
    errors.print(escape(text), highlight=False, soft_wrap=True)
