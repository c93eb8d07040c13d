"""experiments/theory/noise_parts.py: its formulas in small, and docs/theory.md has its tables."""

import importlib
import json
from pathlib import Path

import pytest
import torch

from fetchsgd.quantisers.steps import round_to_steps
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation.run import Run

ROOT = Path(__file__).parents[1]


@pytest.fixture
def noise_parts(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments" / "theory")
    return importlib.import_module("noise_parts")


def test_rounding_errs_as_expected(noise_parts, generator):
    rows = torch.randn(50, 400, generator=generator)
    rounded = round_to_steps(rows, torch.full((50,), 4.0), 7, torch.arange(50)).dequantise()
    found = (rounded - rows).square().sum()
    # The mean of 20,000 errors has a standard error of 1 %: off by 5 % with a probability of 1e-6.
    assert float(found) == pytest.approx(noise_parts.rounding_error(rows, 4.0), rel=0.05)


def test_sampling_errs_as_expected_and_collisions_come_on_top(noise_parts):
    """Means of cohorts that are drawn without replacement, around the mean of all clients."""
    given = {"task": {"name": "digits", "hidden": 2}, "method": {"name": "uncompressed"}}
    run = Run(resolve(given))
    weights = run.start().weights
    parts = noise_parts.noise_parts(run, weights, 0)
    rows = torch.cat(list(noise_parts.gradients(run, weights, 0))).double()
    mean, generator = rows.mean(dim=0), torch.Generator().manual_seed(0)
    drawn = [torch.randperm(len(rows), generator=generator)[:50] for _ in range(10_000)]
    errors = [float((rows[some].mean(dim=0) - mean).square().sum()) for some in drawn]
    expected, _ = parts["50 of 602 clients"]
    # The errors spread by 78 % of their mean, which is off by 5 % with a probability of 1e-9.
    assert sum(errors) / 10_000 / float(mean.square().sum()) == pytest.approx(expected, rel=0.05)
    assert parts["10 weights to a cell"][0] == pytest.approx(9 * (1 + expected))


def test_the_tables_are_those_of_the_results(noise_parts):
    found = json.loads((ROOT / "results" / "theory-noise-parts.json").read_text())
    page = (ROOT / "docs" / "theory.md").read_text()
    assert [one["task"] for one in found["runs"]] == list(noise_parts.RUNS)
    for one in found["runs"]:
        assert noise_parts.table(one) in page


def test_the_page_says_what_the_tables_show():
    """Ratios that the sentences below the tables tell."""
    found = json.loads((ROOT / "results" / "theory-noise-parts.json").read_text())
    page = " ".join((ROOT / "docs" / "theory.md").read_text().split())
    noise = {
        one["task"]: {name: part["noise"] for name, part in one["parts"].items()}
        for one in found["runs"]
    }
    sampling = {task: next(iter(parts.values())) for task, parts in noise.items()}

    def over(task, name, others):
        return [a / b for a, b in zip(noise[task][name], others, strict=True)]

    cells = "10 weights to a cell"
    coarse = {task: over(task, "levels of density 0.01", noise[task][cells]) for task in noise}
    assert f"at most {max(coarse['cifar10']):.1f} times as noisy as a sketch" in page
    assert f"they are {max(coarse['digits']):.1f} times as noisy as one 41 times as long" in page
    assert max(coarse["digits"][2:]) < 1 / 6
    fine = {task: over(task, "levels of density 0.1", sampling[task]) for task in noise}
    low, high = min(fine["cifar10"]), max(fine["cifar10"])
    assert f"adds {low:.1f} to {high:.1f} times what sampling does on CIFAR10" in page
    assert f"digits {max(fine['digits']):.1f} times at first" in page
    assert max(fine["digits"][2:]) < 0.3
    all_cells = [ratio for task in noise for ratio in over(task, cells, sampling[task])]
    assert f"{min(all_cells):.0f} to {max(all_cells):.0f} times what sampling adds" in page
