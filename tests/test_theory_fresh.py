"""experiments/theory/fresh.py, and that docs/theory.md says what it found."""

import importlib
import json
import math
import re
from pathlib import Path

import pytest

from fetchsgd.report.runs import read_results

ROOT = Path(__file__).parents[1]
RESULTS = json.loads((ROOT / "results" / "theory-fresh.json").read_text())
PAGE = re.sub(r"\s+", " ", (ROOT / "docs" / "theory.md").read_text())
NAMES = ("one hash", "fresh, rate c/d", "fresh, rate c/2d", "fresh, rate 3c/d")


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments" / "theory")
    return importlib.import_module("fresh")


def distances():
    """Squared distances of each setting: by seed, then by round."""
    found = {one["label"]: one["distances"] for one in RESULTS["quadratic"]}
    assert [label.startswith(name) for label, name in zip(found, NAMES, strict=True)] == [True] * 4
    return list(found.values())


def test_noise_is_as_predicted_within_what_the_page_says():
    off = [abs(one["measured"] / one["predicted"] - 1) for one in RESULTS["noise"]]
    (told,) = re.findall(r"noise is as predicted, within (\d+) %", PAGE)
    assert int(told) - 1 < 100 * max(off) <= int(told)
    (at_eight,) = [
        one["measured"]
        for one in RESULTS["noise"]
        if (one["members"], one["decode"]) == (8, "prior")
    ]
    assert f"in the figure {at_eight:.1f} instead of 7 at eight weights to a cell" in PAGE


def test_the_quadratic_ends_as_the_page_says(fresh):
    one_hash, whole, some, wild = distances()
    stays = sum(run[-1] for run in one_hash) / len(one_hash)
    assert f"{stays:.0%}".replace("%", " %") + " of the squared distance stays for ever" in PAGE
    assert max(abs(run[-1] - run[100]) for run in one_hash) < 1e-6
    speeds = [-math.log(fresh.mean_distance(runs, 150)) for runs in (some, whole)]
    assert speeds[0] / speeds[1] == pytest.approx(3 / 4, abs=0.03)
    assert "at three quarters of the speed" in PAGE
    assert all(run[-1] > 1e6 for run in wild)


def test_the_same_in_small(fresh):
    found = fresh.descend(fresh.SETTINGS[1], 0, rounds=20)
    assert found == pytest.approx(RESULTS["quadratic"][1]["distances"][0][:21], rel=1e-5)
    assert fresh.predicted_noise(4, 0.0, "prior") == pytest.approx(3)
    assert fresh.predicted_noise(4, 2.0, "prior") < 1


def test_the_table_of_diagnostics_is_that_of_the_runs():
    runs = {run.name: run for run in read_results(ROOT / "results" / "digits-diagnosed.jsonl")}
    _, section = PAGE.split("**Is it so in my run?**")
    rows = re.findall(r"\| `(\w+)` \|[^|]*\|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|", section)
    assert len(rows) == 7
    assert "(97.5 and 96.3 %, at 10.6x and 567x up.)" in section
    assert [f"{100 * runs[name].value:.1f}" for name in ("float32", "step")] == ["97.5", "96.3"]
    ups = [runs[name].compression("upload", "wire") for name in ("float32", "step")]
    assert [f"{up:.3g}" for up in ups] == ["10.6", "567"]
    for name, *cells in rows:
        shown = []
        for run in (runs["float32"], runs["step"]):
            for line in (run.curve[0], run.curve[18]):
                value = line.diagnostics.get(name)
                shown.append("" if value is None else f"{value:.2g}")
        assert [cell.strip() for cell in cells] == shown, name
