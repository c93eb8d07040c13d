"""The command line: thin, so that everything it does can be done from Python as well.

Without the extra `sim` the command is installed but its packages are not: then it says so.
"""

import sys

from fetchsgd.extras import how_to_install

__all__ = ["main"]

try:
    from fetchsgd.cli.main import main
except ModuleNotFoundError as error:
    sentence = how_to_install(error.name)
    if sentence is None:
        raise

    def main() -> None:
        """Say what is missing."""
        print(f"error: {sentence}", file=sys.stderr)
        sys.exit(2)
