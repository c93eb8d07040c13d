"""Diagnostics in the report: curves where runs have them, and nothing where none has."""

from __future__ import annotations

import json
import re

import pytest

from fetchsgd.diagnose import QUANTITIES as MEASURED
from fetchsgd.report import find_runs, write_report
from fetchsgd.report.curves import diagnostic_curve
from fetchsgd.report.diagnostics import QUANTITIES
from fetchsgd.report.figures.curves import diagnostics
from fetchsgd.report.groups import group_by_task


def embedded(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))


def test_every_quantity_that_is_measured_has_a_figure():
    assert tuple(QUANTITIES) == MEASURED


def test_a_curve_has_what_was_measured_and_no_more(diagnosed_runs):
    by_name = {run.name: run for run in find_runs([diagnosed_runs])}
    curve = diagnostic_curve(by_name["two"], "heaviest_share")
    assert curve.y[:2] == [0.25, 0.125]
    assert curve.round[:2] == [60, 120]
    assert len(curve.y) == 40
    assert diagnostic_curve(by_name["two"], "contraction").y == []
    assert diagnostic_curve(by_name["none"], "heaviest_share").y == []
    thin = diagnostic_curve(by_name["two"], "heaviest_share", limit=20)
    assert thin.y[0] == pytest.approx((0.25 + 0.125) / 2)
    assert thin.round[-1] == 2400


def test_the_page_has_figures_and_data_for_them(diagnosed_runs, tmp_path):
    summary = write_report([diagnosed_runs], tmp_path / "report.html")
    page = summary.page.read_text(encoding="utf-8")
    for name, quantity in QUANTITIES.items():
        assert f'data-chart="{name}"' in page
        assert quantity.title in page
    (task,) = embedded(page)["tasks"]
    assert list(task["diagnostics"]) == list(QUANTITIES)
    curves = {run["name"]: set(run["curves"]) for run in task["runs"]}
    assert curves["all"] == {"metric", "loss", *QUANTITIES}
    assert curves["two"] == {"metric", "loss", "heaviest_share"}
    assert curves["none"] == {"metric", "loss"}
    assert 'href="report-cifar10-diagnostics.png"' in page
    assert "report-cifar10-diagnostics.pdf" in {path.name for path in summary.figures}


def test_without_diagnostics_the_page_does_not_mention_them(make_run, tmp_path):
    make_run()
    summary = write_report([tmp_path / "runs"], tmp_path / "report.html")
    page = summary.page.read_text(encoding="utf-8")
    assert "Diagnostics" not in page
    assert not [path for path in summary.figures if "diagnostics" in path.name]


def test_runs_that_differ_only_in_diagnostics_are_one_group(make_run, tmp_path):
    for name, on in (("on", True), ("off", False)):
        folder = make_run(name, seed=int(on))
        result = json.loads((folder / "result.json").read_text())
        result["config"]["train"] |= {"diagnose": on, "diagnose_every": 10 + on}
        (folder / "result.json").write_text(json.dumps(result))
    (task,) = group_by_task(find_runs([tmp_path / "runs"]))
    assert len(task.groups) == 1


def test_the_figure_has_a_line_for_each_run_that_was_diagnosed(diagnosed_runs):
    (task,) = group_by_task(find_runs([diagnosed_runs]))
    figure = diagnostics(task)
    lines = {
        axes.get_title(): [line for line in axes.lines if len(line.get_xdata()) > 1]
        for axes in figure.axes
        if axes.get_visible()
    }
    assert set(lines) == {quantity.title for quantity in QUANTITIES.values()}
    assert len(lines[QUANTITIES["heaviest_share"].title]) == 2
    assert len(lines[QUANTITIES["contraction"].title]) == 1
    assert figure.axes[0].get_yscale() == "log"
    assert figure.get_suptitle() == "cifar10"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FetchSGD"]


def test_the_figure_shades_from_seed_to_seed(make_run, diagnose, tmp_path):
    for seed in (0, 1):
        diagnose(make_run(f"seed{seed}", seed=seed), error_left=0.5 + seed)
    (task,) = group_by_task(find_runs([tmp_path / "runs"]))
    (axes,) = diagnostics(task).axes
    (line,) = [line for line in axes.lines if len(line.get_xdata()) > 1]
    assert line.get_ydata()[0] == pytest.approx(1.0)
    assert len(axes.collections) == 1
