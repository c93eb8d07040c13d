"""Several runs of a method are told apart by numbers: on the page, in its table, and in print."""

import json
import re

from fetchsgd.report import find_runs, write_report
from fetchsgd.report.figures.curves import curves
from fetchsgd.report.figures.scatter import scatter
from fetchsgd.report.figures.tags import MOST
from fetchsgd.report.groups import group_by_task


def three_settings(make_run):
    for k in (50, 500, 5000):
        make_run(f"k{k}", options={"k": k}, value=0.9 - k / 1e5, compression=(1e5 / k, 1e5 / k))
    make_run("plain", method="uncompressed")


def texts(axes):
    return [text.get_text() for text in axes.texts]


def key_of(figure):
    return " ".join(figure.legends[0].get_title().get_text().split())


def test_only_methods_with_several_settings_are_numbered(make_run, tmp_path):
    three_settings(make_run)
    make_run("again", options={"k": 50}, seed=1)
    (task,) = group_by_task(find_runs([tmp_path]))
    named = dict(zip((group.runs[0].name for group in task.groups), task.numbers, strict=True))
    assert sorted(named[name] for name in ("k50", "k500", "k5000")) == [1, 2, 3]
    assert named["plain"] is None


def test_print_shows_the_numbers_and_what_they_mean(make_run, tmp_path):
    three_settings(make_run)
    (task,) = group_by_task(find_runs([tmp_path]))
    for figure in (scatter(task, "overall", task.count), curves(task)):
        for axes in figure.axes:
            assert sorted(texts(axes)) == ["1", "2", "3"]
        for group, number in zip(task.groups, task.numbers, strict=True):
            if number is not None:
                assert f"{number}: k={group.runs[0].settings['method.k']}" in key_of(figure)


def test_of_very_many_settings_print_explains_the_frontier(make_run, tmp_path):
    for k in range(1, MOST + 10):
        value = 0.9 if k in (3, 20) else 0.5
        make_run(f"k{k}", options={"k": k}, value=value, compression=(k, k), wire=(k, k))
    (task,) = group_by_task(find_runs([tmp_path]))
    figure = scatter(task, "overall", task.count)
    assert len(texts(figure.axes[0])) == len(task.on_frontier("overall", task.count)) < MOST
    assert "Others: see the table of the report." in key_of(figure)


def test_the_page_has_the_same_numbers(make_run, tmp_path):
    three_settings(make_run)
    write_report([tmp_path], tmp_path / "page.html", figures=False)
    page = (tmp_path / "page.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))
    (task,) = data["tasks"]
    for kind in ("groups", "runs"):
        found = {item["name"]: item["number"] for item in task[kind]}
        assert found["plain"] is None
        assert {found["k50"], found["k500"], found["k5000"]} == {1, 2, 3}
    assert "numbers tell them apart" in page


def test_baselines_of_different_length_are_warned_about(make_run, tmp_path):
    for k, epochs in ((5, 12.0), (50, 24.0)):
        folder = make_run(f"k{k}", options={"k": k})
        result = json.loads((folder / "result.json").read_text())
        result["config"]["train"]["baseline_epochs"] = epochs
        (folder / "result.json").write_text(json.dumps(result))
    (task,) = group_by_task(find_runs([tmp_path]))
    assert task.baselines == [12.0, 24.0]
    write_report([tmp_path], tmp_path / "page.html", figures=False)
    warning = "relative to uncompressed runs of different length, 12 and 24 epochs"
    assert warning in (tmp_path / "page.html").read_text()
    told = "Caution: compression is relative to baselines of different length (12, 24 epochs)."
    assert told in key_of(scatter(task, "overall", task.count))
