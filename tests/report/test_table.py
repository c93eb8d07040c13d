from __future__ import annotations

import pytest

from fetchsgd.report import ReportError, find_runs, summary_table, table_text
from fetchsgd.report import text as words
from fetchsgd.report.tasks import group_by_task


def test_no_run_is_left_out(study):
    rows = summary_table(find_runs([study]))
    statuses = [row["status"] for row in rows]
    assert len(rows) == 54
    assert (statuses.count("diverged"), statuses.count("unfinished")) == (1, 1)
    assert {row["method"] for row in rows} == {
        *("fetchsgd", "local_topk", "fedavg", "true_topk", "uncompressed")
    }


def test_settings_are_those_in_which_the_runs_of_the_method_differ(make_run, tmp_path):
    make_run("a", options={"k": 500, "rows": 5})
    make_run("b", options={"k": 50, "rows": 5})
    make_run("c", method="uncompressed", epochs=12.0)
    rows = {row["name"]: row for row in summary_table(find_runs([tmp_path]))}
    assert rows["a"]["settings"] == "k=500"
    assert rows["b"]["settings"] == "k=50"
    assert rows["c"]["settings"] == ""


def test_runs_that_differ_in_their_seed_have_a_row_each(make_run, tmp_path):
    make_run("a", seed=0)
    make_run("b", seed=1)
    rows = summary_table(find_runs([tmp_path]))
    assert [(row["settings"], row["seed"]) for row in rows] == [("", 0), ("", 1)]


def test_as_text(make_run, tmp_path):
    make_run("a", options={"k": 500}, value=0.9135, compression=(10.0, 20.0))
    make_run("b", options={"k": 50}, status="diverged", value=None, compression=None)
    head, first, second = table_text(summary_table(find_runs([tmp_path]))).splitlines()
    assert head.split() == (
        ["task", "method", "settings", "seed", "value", "upload", "download", "overall", "status"]
    )
    assert first.split() == (
        ["cifar10", "fetchsgd", "k=500", "0", "91.35", "%", "10×", "20×", "13.3×", "finished"]
    )
    assert second.split() == ["cifar10", "fetchsgd", "k=50", "0", *("–" * 4), "diverged"]


def test_diverged_and_unfinished_runs_are_never_in_front(study):
    for task in group_by_task(find_runs([study])):
        for kind in ("upload", "download", "overall"):
            front = [task.runs[index] for index in task.in_front(kind)]
            assert {run.method for run in front} == set(task.methods)
            assert {run.status for run in front} == {"finished"}


def test_a_diverged_run_with_the_best_numbers_is_not_in_front(make_run, tmp_path):
    make_run("good", value=0.8, compression=(2.0, 2.0))
    make_run("bad", value=0.9, compression=(9.0, 9.0), status="diverged")
    (task,) = group_by_task(find_runs([tmp_path]))
    assert [run.name for run in task.frontier_of("fetchsgd", "overall")] == ["good"]


def test_one_task_has_one_metric(make_run, tmp_path):
    make_run("a")
    make_run("b", metric="perplexity", value=20.0)
    with pytest.raises(ReportError, match="the field 'metric' is 'perplexity', but other runs"):
        group_by_task(find_runs([tmp_path]))


def test_numbers_as_people_read_them():
    ratios = {None: "–", 1.0: "1×", 3.744: "3.74×", 99.97: "100×", 1240.4: "1,240×", 0.5: "0.5×"}
    sizes = {0: "0 B", 999: "999 B", 999_999: "1 MB", 16_200_000_000: "16.2 GB", 10**18: "1,000 PB"}
    assert {ratio: words.times(ratio) for ratio in ratios} == ratios
    assert {size: words.size(size) for size in sizes} == sizes
    assert [words.duration(seconds) for seconds in (4.25, 612, 7500)] == (
        ["4.25 s", "10 min", "2 h 05 min"]
    )
    assert [words.setting_value(v) for v in (True, 0.1, [1, 2.0], "a")] == (
        ["true", "0.1", "[1, 2]", "a"]
    )
