"""What the pages promise: examples run, and the figures of the README are the measured ones."""

import doctest
import importlib
import json
import math
import re
import sys
from pathlib import Path
from statistics import fmean

import pytest
import torch

from fetchsgd.report.runs import find_runs
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation.run import Run
from fetchsgd.tasks.digits import PRESET

ROOT = Path(__file__).parents[1]


def test_the_example_of_the_readme_prints_what_it_says(capsys):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
    assert len(code.strip().splitlines()) <= 12
    exec(compile(code, "README.md", "exec"), {})
    indices, norm = capsys.readouterr().out.split("\n")[:2]
    assert indices == "[3, 50000]"
    assert abs(float(norm) - 2_000_000**0.5) < 30


OWN_PARTS = [
    "method.name=my_parts:SignStep",
    "upload.quantiser=my_parts:Half",
    "download.grid=my_parts:Bounded",
]


@pytest.mark.parametrize("named", OWN_PARTS)
def test_parts_as_contributing_writes_them_train(named, tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    (tmp_path / "my_parts.py").write_text("\n\n".join(blocks))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)
    config = resolve({"task": {"name": "tinytask:tiny"}}, [named])
    result = Run(config).execute(tmp_path / "run")
    assert result["train_loss"] < math.log(3)


def test_the_map_of_contributing_names_every_file():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    the_map = page.split("## The map")[1].split("## How we write")[0]
    package = ROOT / "src/fetchsgd"
    files = {
        path.name for path in package.rglob("*.py") if path.parent != package / "report/figures"
    }
    named = set(re.findall(r"\b\w+\.py\b", the_map)) - {"algorithm1.py"}  # of examples/
    assert named == files - {"__init__.py", "__main__.py"}


DOCTESTED = [
    "fetchsgd.vector",
    "fetchsgd.sketch.count_sketch",
    "fetchsgd.simulation.simulate",
    "fetchsgd.runs.trained_model",
    "fetchsgd.exchange.plan",
    "fetchsgd.exchange.server",
    "fetchsgd.exchange.client_update",
    "fetchsgd.wire.codec",
    "fetchsgd.methods.fetchsgd",
    "fetchsgd.methods.fedavg",
    "fetchsgd.methods.local_topk",
    "fetchsgd.methods.true_topk",
    "fetchsgd.methods.uncompressed",
    "fetchsgd.quantisers.bits",
    "fetchsgd.quantisers.step",
    "fetchsgd.quantisers.shared_step",
    "fetchsgd.quantisers.eden",
    "fetchsgd.server.grids.floats",
    "fetchsgd.server.grids.steps",
    "fetchsgd.server.schedule",
    "fetchsgd.server.sampling",
    "fetchsgd.tasks.base",
]


@pytest.mark.parametrize("module", DOCTESTED)
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


PAPERS = ("cifar10-paper", "fetchsgd-paper")
TODAY = "cifar10-frontier"
# The best run of a file and a method, with these settings, and which compression stands beside it.
TOLD = [
    (*PAPERS, {"method.cols": 650_000}, "upload"),
    (*PAPERS, {"method.cols": 325_000}, "upload"),
    (TODAY, "fetchsgd", {"method.cols": 650_000}, "upload"),
    (TODAY, "fetchsgd", {"method.cols": 325_000}, "upload"),
    (TODAY, "true_topk", {"method.k": 10_000}, "upload"),
    (TODAY, "true_topk", {"method.k": 20_000}, "upload"),
    (TODAY, "true_topk", {"method.k": 5_000}, "overall"),
]


@pytest.mark.parametrize(("file", "method", "settings", "kind"), TOLD, ids=str)
def test_the_cifar_figures_of_the_readme_are_those_of_the_results(file, method, settings, kind):
    readme = " ".join((ROOT / "README.md").read_text().split())
    found = [
        run
        for run in find_runs([ROOT / f"results/{file}.jsonl"])
        if run.method == method and run.value is not None and run.can_be_drawn(kind, "wire")
        and all(run.settings[key] == value for key, value in settings.items())
    ]  # fmt: skip
    best = max(found, key=lambda run: run.value)
    told = f"{100 * best.value:.1f} % at {best.compression(kind, 'wire'):.0f}x"
    assert told in readme


def mean_of(file, method, settings, kind):
    """Accuracy and compression, over the seeds of a setting."""
    found = [
        run
        for run in find_runs([ROOT / f"results/{file}.jsonl"])
        if run.method == method and all(run.settings.get(k) == v for k, v in settings.items())
    ]
    assert len({run.seed for run in found}) == len(found) > 0
    values = [run.value for run in found]
    ratios = [run.compression(kind, "wire") for run in found]
    return f"{100 * fmean(values):.1f} % at {fmean(ratios):.0f}x"


DIGITS, STEPS = "digits-frontier", {"download.step": 0.25, "upload.density": 0.01}
WHEN = [
    (TODAY, "true_topk", {"method.k": 20_000}, "upload"),
    (TODAY, "true_topk", {"method.k": 5_000}, "upload"),
    (DIGITS, "true_topk", {"method.k": 500, **STEPS}, "upload"),
    (DIGITS, "true_topk", {"method.k": 250, **STEPS}, "upload"),
    (DIGITS, "true_topk", {"method.k": 125, **STEPS}, "upload"),
    *((DIGITS, "fetchsgd", {"method.cols": cols, "method.decode": "auto"}, "upload")
      for cols in (8000, 4000, 2000, 1000)),
    *((DIGITS, "fetchsgd-paper", {"method.cols": cols}, "upload") for cols in (8000, 4000)),
]  # fmt: skip


@pytest.mark.parametrize("told", WHEN, ids=str)
def test_which_settings_when_is_what_was_measured(told):
    page = (ROOT / "docs/results.md").read_text()
    table = page.split("## Which settings when")[1].split("## What the paper says")[0]
    assert mean_of(*told) in table


@pytest.mark.parametrize("page", sorted(ROOT.glob("experiments/*/README.md")), ids=str)
def test_tables_of_the_experiments_are_those_of_the_results(page, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    text = page.read_text()
    assert "<!-- table " in text or "not measured yet" in text
    assert importlib.import_module("table").renewed(text, ROOT) == text


def test_links_in_pages_lead_somewhere():
    pages = ["*.md", "docs/*.md", "experiments/*/*.md"]
    for page in [page for pattern in pages for page in ROOT.glob(pattern)]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_code_of_the_page_on_python_runs(tmp_path, monkeypatch):
    """All of it, from top to bottom, as one program; on digits for a fraction of an epoch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PRESET["train"], "epochs", 0.3)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.S)
    names = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/python.md, block {number}", "exec"), names)
    assert names["again"].rounds == len(names["rounds"])
    with torch.no_grad():
        guesses = names["server"].model()(names["inputs"][500:]).argmax(dim=1)
    assert (guesses == names["targets"][500:]).float().mean() > 0.6
