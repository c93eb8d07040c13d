"""What the pages promise: examples run, and the figures on them are the measured ones.

Notebooks run when the site is built (`make docs`), the README's Python runs from the wheel
(`make package`).
"""

import doctest
import importlib
import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch

import fetchsgd
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation.run import Run
from fetchsgd.tasks.digits import PRESET

ROOT = Path(__file__).parents[1]


def python_of(page):
    return re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S).group(1)


def test_the_readme_needs_ten_lines_of_python():
    code = [line for line in python_of("README.md").splitlines() if line.strip()]
    assert len(code) <= 10


def test_the_example_of_the_sketch_prints_what_it_says(capsys):
    exec(compile(python_of("docs/sketch.md"), "sketch.md", "exec"), {})
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


def test_the_speed_table_is_what_was_measured():
    written = (ROOT / "docs/speed.md").read_text()
    for device in ("cpu", "cuda"):
        page = json.loads((ROOT / f"benchmarks/results/sketch-{device}.json").read_text())
        ratios = {row["what"]: row.get("ratio") for row in page["rows"]}
        for operation in ("sketch", "top_k"):
            pair = [ratios[f"d=124M c=1.24M {operation} r={rows}"] for rows in (1, 5)]
            assert f"{pair[0]:.1f}x | {pair[1]:.1f}x" in written


def measured(file, what):
    rows = json.loads((ROOT / f"benchmarks/results/{file}.json").read_text())["rows"]
    return next(row["ratio"] for row in rows if row["what"].startswith(what))


def test_speed_beside_others_is_what_was_measured():
    written = " ".join((ROOT / "docs/speed.md").read_text().split())
    flower, pfl = (
        measured("rivals-cpu", "flower"),
        measured("rivals-cpu", "pfl, fedavg, 2 processes"),
    )
    assert f"{1 / flower:.0f}x the rounds per second of Flower's simulation" in written
    assert f"{1 / pfl:.1f}x those of pfl" in written
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"{1 / flower:.0f}x as many per second as Flower's simulation" in readme
    assert f"{1 / pfl:.1f}x as many as pfl" in readme
    for part in (
        f"takes {measured('rounds-cpu', 'digits d=85066 n=20: fetchsgd'):.2f}x an uncompressed one",
        f"{measured('paper-tasks-cuda', 'cifar_like: FetchSGD'):.2f}x with CIFAR10's ResNet9",
        f"{measured('paper-tasks-cuda', 'femnist_like: FetchSGD'):.2f}x with FEMNIST's ResNet101",
        f"takes {measured('cifar10-runs-cuda', 'CIFAR10, 24 epochs, FetchSGD, in'):.1f} s",
        f"{measured('cifar10-runs-cuda', 'CIFAR10, 24 epochs, FetchSGD /'):.2f}x. With 135",
        f"{100 * measured('paper-tasks-cuda', 'chat_like: sketch'):.1f} % of the round",
    ):
        assert part in written


def test_the_plan_for_a_million_clients_follows_from_measured_rates():
    written = (ROOT / "docs/scale.md").read_text()
    rows = json.loads((ROOT / "benchmarks/results/wire-cpu.json").read_text())["rows"]
    rates = {row["what"]: float(row["measured"].split()[0]) for row in rows}
    symbols = rates["4 bits, Gaussian: decode on one core, million symbols a second"]
    cells = rates["weighted sum of 4 bits on one core, float32"]
    decoding, adding = 1.24e6 / symbols / 1e6, 4 * 1.24e6 / cells / 1e9
    for part in (
        f"decodes {symbols:.0f} million such symbols a second",
        f"at {cells} GB of float32 cells a second",
        f"{1e3 * decoding:.1f} ms and {1e3 * adding:.1f} ms a message",
        f"{1e3 * (decoding + adding):.1f} s, while they arrive",
        f"| - | {8 * 0.62:.1f} s |",
        f"{8 * 620 / 10:.0f} s | {8 * 4.96 / 10:.1f} s",
        f"{8 * 620 / 10 / 60:.1f} min | {8 * 0.62 + 8 * 4.96 / 10:.0f} s",
    ):
        assert part in written, part


def test_the_table_of_the_readme_is_that_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    text = (ROOT / "README.md").read_text()
    assert "<!-- headline -->" in text
    assert importlib.import_module("headline").renewed(text) == text


def test_badges_say_what_the_project_says(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs/figures")
    for name, drawn in importlib.import_module("badges").badges().items():
        assert (ROOT / "docs/figures" / name).read_text() == drawn


def test_figures_of_the_method_are_drawn_from_the_hash(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs/figures")
    for name, drawn in importlib.import_module("draw").figures().items():
        assert (ROOT / "docs/figures" / name).read_text() == drawn


def test_the_version_is_the_same_everywhere():
    version = fetchsgd.__version__
    assert f"version = {{{version}}}" in (ROOT / "README.md").read_text()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("page", ["docs/lora.md", "experiments/personachat/README.md"])
def test_the_bytes_beside_lora_are_those_of_the_results(page):
    text = (ROOT / page).read_text()
    lines = (ROOT / "results/personachat-lora.jsonl").read_text().splitlines()
    assert len(lines) == 5
    for line in map(json.loads, lines):
        told = [line[f"wire_{way}_bytes"] / 1e6 for way in ("upload", "download")]
        assert f"| {line['value']:.2f} | {told[0]:,.0f} | {told[1]:,.0f} |" in text


WITH_TABLES = [*sorted(ROOT.glob("experiments/*/README.md")), ROOT / "docs/local.md"]


@pytest.mark.parametrize("page", WITH_TABLES, ids=str)
def test_tables_of_the_experiments_are_those_of_the_results(page, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    text = page.read_text()
    assert "<!-- table " in text or "not measured yet" in text
    assert importlib.import_module("table").renewed(text, ROOT) == text


def test_what_liars_cost_is_what_was_measured(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    text = (ROOT / "docs/reliability.md").read_text()
    assert text.count("<!-- liars results/") == 4
    assert importlib.import_module("liars").renewed(text, ROOT) == text


def test_links_in_pages_lead_somewhere():
    pages = ["*.md", "docs/**/*.md", "examples/**/*.md", "experiments/*/*.md"]
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
