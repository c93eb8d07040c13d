"""The figures for print: readable ticks, labels that cover nothing, and notes."""

from __future__ import annotations

from itertools import combinations

import pytest

from fetchsgd.report import find_runs
from fetchsgd.report.figures.axes import curves_note, frontiers_note, scatter_note
from fetchsgd.report.figures.curves import curves
from fetchsgd.report.figures.scatter import frontiers, scatter
from fetchsgd.report.groups import group_by_task


@pytest.fixture(scope="module")
def task(study):
    return group_by_task(find_runs([study]))[0]


def boxes(figure, texts):
    shown = [text for text in texts if text.get_text() and text.get_visible()]
    renderer = figure.canvas.get_renderer()
    return [text.get_window_extent(renderer) for text in shown]


def drawn(figure):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).draw()
    return figure


def shown_ticks(axes):
    low, high = axes.get_xlim()
    places = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    return [label for tick, label in places if low <= tick <= high]


@pytest.mark.parametrize("ratio", [1.6, 3.6, 22.0, 210.0, 5000.0])
@pytest.mark.parametrize("draw", [frontiers, lambda task: scatter(task, "upload", "wire"), curves])
def test_ticks_stand_apart_and_there_are_several(make_run, tmp_path, ratio, draw):
    make_run("plain", method="uncompressed", wire=(1.0, 1.0), value=0.9)
    make_run("small", numbers={"bits": 2}, wire=(ratio, ratio), value=0.8)
    (task,) = group_by_task(find_runs([tmp_path]))
    figure = drawn(draw(task))
    for axes in figure.axes:
        ticks = boxes(figure, shown_ticks(axes))
        assert len(ticks) >= 2
        assert not any(one.overlaps(other) for one, other in combinations(ticks, 2))


def test_labels_of_frontiers_overlap_neither_each_other_nor_points(task):
    figure = drawn(frontiers(task))
    for axes in figure.axes:
        labels = boxes(figure, axes.texts)
        points = [p for line in axes.lines for p in axes.transData.transform(line.get_xydata())]
        assert len(labels) >= 3
        assert not any(one.overlaps(other) for one, other in combinations(labels, 2))
        assert not any(box.contains(*point) for box in labels for point in points)


def test_notes_name_seeds_and_runs_that_diverged(task):
    seeds = "Means of 1 to 3 seeds; {} from the worst to the best seed."
    assert frontiers_note(task) == f"{seeds.format('bars')} 2 runs diverged (not drawn)."
    assert "Faint: not on the frontier" in scatter_note(task, "upload", "wire")
    assert curves_note(task).startswith(seeds.format("shades"))


def test_a_single_run_needs_no_note(make_run, tmp_path):
    make_run()
    (task,) = group_by_task(find_runs([tmp_path]))
    assert frontiers_note(task) == scatter_note(task, "upload", "wire") == curves_note(task) == ""


def test_a_diverged_run_does_not_set_the_scale(make_run, tmp_path):
    make_run("good", metric="perplexity", value=20.0)
    before = curves(group_by_task(find_runs([tmp_path]))[0]).axes[0].get_ylim()
    make_run("bad", metric="perplexity", value=1e9, status="diverged", options={"k": 5})
    after = curves(group_by_task(find_runs([tmp_path]))[0]).axes[0].get_ylim()
    assert after == before


def test_settings_that_learn_nothing_are_left_out_of_the_frontiers_and_counted(make_run, tmp_path):
    make_run("good", method="uncompressed", wire=(1.0, 1.0), value=0.9)
    make_run("small", numbers={"bits": 2}, wire=(20.0, 20.0), value=0.8)
    make_run("dead", numbers={"bits": 2}, wire=(99.0, 99.0), value=0.1, options={"k": 5})
    (task,) = group_by_task(find_runs([tmp_path]))
    assert frontiers_note(task) == "1 setting left out: a seed is below half the best accuracy."
    assert all(axes.get_ylim()[0] > 50 for axes in drawn(frontiers(task)).axes)
