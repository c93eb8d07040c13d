"""docs/sweeps.md: its files are sweeps, and make the runs that stand below them."""

import re
import tomllib
from pathlib import Path

from fetchsgd.simulation.sweep import plan

PAGE = (Path(__file__).parents[2] / "docs/sweeps.md").read_text()


def test_the_files_of_the_page_make_the_runs_that_it_lists():
    pairs = re.findall(r"```toml\n(.*?)```.*?```text\n(.*?)```", PAGE, re.S)
    assert len(pairs) == PAGE.count("```toml") == 2
    for file, names in pairs:
        planned = plan(tomllib.loads(file), "docs/sweeps.md")
        assert [run.name for run in planned] == names.splitlines()
        assert all(run.settings["task"]["name"] == "digits" for run in planned)
