"""What the pages promise: examples run, and the figures of the README are the measured ones."""

import doctest
import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_example_of_the_readme_prints_what_it_says(capsys):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
    assert len(code.strip().splitlines()) <= 12
    exec(compile(code, "README.md", "exec"), {})
    indices, norm = capsys.readouterr().out.split("\n")[:2]
    assert indices == "[3, 50000]"
    assert abs(float(norm) - 2_000_000**0.5) < 30


@pytest.mark.parametrize("module", ["fetchsgd.vector", "fetchsgd.sketch.count_sketch"])
def test_examples_in_docstrings(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_speed_table_of_the_readme_is_what_was_measured():
    readme = (ROOT / "README.md").read_text()
    for device in ("cpu", "cuda"):
        page = json.loads((ROOT / f"benchmarks/results/sketch-{device}.json").read_text())
        ratios = {row["what"]: row.get("ratio") for row in page["rows"]}
        for operation in ("sketch", "top_k"):
            pair = [ratios[f"d=124M c=1.24M {operation} r={rows}"] for rows in (1, 5)]
            assert f"{pair[0]:.1f}x | {pair[1]:.1f}x" in readme


def test_links_in_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
