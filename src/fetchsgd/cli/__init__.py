"""The command line: thin, so that everything it does can be done from Python as well."""

from fetchsgd.cli.main import app, main

__all__ = ["app", "main"]
