import sys

import pytest

from fetchsgd.cli import main


@pytest.fixture
def here(monkeypatch, capsys):
    """The command line in this process, which is quicker: exit code, output, sentences."""

    def run(*words):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["fetchsgd", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run
