"""The table of runs: which settings a row names, and how it looks in a terminal."""

from __future__ import annotations

import json

import pytest

from fetchsgd.report import ReportError, find_runs, summary_table, table_text, write_report
from fetchsgd.report.groups import group_by_task


def test_no_run_is_left_out(study):
    rows = summary_table(find_runs([study]))
    statuses = [row["status"] for row in rows]
    assert len(rows) == 63
    assert (statuses.count("diverged"), statuses.count("unfinished")) == (2, 1)
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


def test_runs_as_in_the_paper_say_what_low_bit_ones_vary(make_run, tmp_path):
    make_run("plain", method="true_topk", options={"k": 500})
    for k, step in ((500, 0.25), (50, 0.25), (50, 0.5)):
        numbers = {"grid": "steps", "step": step}
        make_run(f"{k}-{step}", method="true_topk", options={"k": k}, numbers=numbers)
    rows = {row["name"]: row for row in summary_table(find_runs([tmp_path]))}
    assert {name: row["settings"] for name, row in rows.items()} == {
        "plain": "k=500",
        "500-0.25": "k=500, bits=32, step=0.25",
        "50-0.25": "k=50, bits=32, step=0.25",
        "50-0.5": "k=50, bits=32, step=0.5",
    }


def test_steps_are_told_where_weights_are_at_steps_as_a_matter_of_course(make_run, tmp_path):
    for k, step in ((500, 0.25), (50, 0.25), (50, 0.5)):
        make_run(f"{k}-{step}", options={"k": k}, numbers={"grid": "steps", "step": step})
    rows = {row["name"]: row for row in summary_table(find_runs([tmp_path]))}
    assert {name: row["settings"] for name, row in rows.items()} == {
        "500-0.25": "k=500, step=0.25", "50-0.25": "k=50, step=0.25", "50-0.5": "k=50, step=0.5",
    }  # fmt: skip


def test_epsilon_stands_beside_accuracy_and_bytes_where_a_run_has_one(make_run, tmp_path):
    make_run("plain")
    assert "epsilon" not in table_text(summary_table(find_runs([tmp_path])))
    path = make_run("private", options={"k": 50}) / "result.json"
    spent = {"epsilon": 7.9961, "delta": 1e-5}
    path.write_text(json.dumps(json.loads(path.read_text()) | spent))
    rows = {row["name"]: row for row in summary_table(find_runs([tmp_path]))}
    assert [rows[name]["epsilon"] for name in ("plain", "private")] == [None, 7.9961]
    head, *lines = table_text(list(rows.values())).splitlines()
    place = head.index("epsilon") + len("epsilon")
    shown = {line[:place].split()[-1] for line in lines[:2]}
    assert shown == {"8", "–"}
    write_report([tmp_path], tmp_path / "report.html", figures=False)
    page = (tmp_path / "report.html").read_text()
    assert "epsilon 8 at delta 1e-05" in page
    assert ">epsilon</button>" in page


def test_runs_that_differ_in_their_seed_have_a_row_each(make_run, tmp_path):
    make_run("a", seed=0)
    make_run("b", seed=1)
    rows = summary_table(find_runs([tmp_path]))
    assert [(row["settings"], row["seed"]) for row in rows] == [("", 0), ("", 1)]


def test_low_bit_runs_say_how_their_numbers_are_written(make_run, tmp_path):
    for bits in (8, 4):
        make_run(f"steps{bits}", numbers={"bits": bits, "grid": "steps", "step": 0.25})
    make_run("half", numbers={"bits": 4, "grid": "float16"})
    make_run("plain")
    rows = {row["name"]: row for row in summary_table(find_runs([tmp_path]))}
    assert {name: row["settings"] for name, row in rows.items()} == {
        "steps8": "bits=8, step=0.25",
        "steps4": "bits=4, step=0.25",
        "half": "bits=4, grid=float16",
        "plain": "",
    }
    assert [name for name, row in rows.items() if not row["low_bit"]] == ["plain"]


def test_a_row_has_both_counts_as_numbers(make_run, tmp_path):
    make_run("new", compression=(10.0, 20.0), wire=(40.0, 40.0))
    make_run("old", options={"k": 5}, compression=(10.0, 20.0), wire=None)
    rows = {row["name"]: row for row in summary_table(find_runs([tmp_path]))}
    keys = ("upload", "wire_upload", "wire_download", "wire_overall")
    assert [rows["new"][key] for key in keys] == [10, 40, 40, 40]
    assert [rows["old"][key] for key in keys] == [10, None, None, None]
    assert rows["old"]["wire_upload_bytes"] is None
    assert rows["new"]["wire_upload_bytes"] < rows["new"]["upload_bytes"]


def test_as_text_on_the_wire(make_run, tmp_path):
    make_run("a", options={"k": 500}, value=0.9135, compression=(10.0, 20.0), wire=(8.0, 8.0))
    make_run("b", options={"k": 50}, value=0.9, compression=(10.0, 20.0), wire=None)
    head, *rows, blank, legend = table_text(summary_table(find_runs([tmp_path]))).splitlines()
    assert head.split()[-5:] == ["up", "down", "overall", "paper's", "status"]
    assert sorted(row.split()[2:] for row in rows) == [
        ["k=50", "0", "90.00", "%", "–", "–", "–", "13.3×", "finished"],
        ["k=500", "0", "91.35", "%", "8×", "8×", "8×", "13.3×", "finished"],
    ]
    assert blank == ""
    assert "on the wire" in legend


def test_the_text_fits_a_terminal(make_run, tmp_path):
    many = {f"option_{letter}": 10_000 for letter in "abcdefgh"}
    numbers = {"bits": 4, "grid": "steps", "step": 0.0625}
    make_run("a", method="uncompressed", numbers=numbers, compression=(1000.0, 2000.0))
    make_run("b", options=many, numbers=numbers, wire=(12_345.0, 12_345.0))
    make_run("c", options=dict.fromkeys(many, 1), numbers=numbers, status="unfinished")
    table = table_text(summary_table(find_runs([tmp_path])))
    assert max(map(len, table.splitlines())) <= 120
    for part in ("option_h=10000", "step=0.0625", "unfinished", "12,345×"):
        assert part in table


def test_as_text_without_the_wire(make_run, tmp_path):
    make_run("a", options={"k": 500}, value=0.9135, compression=(10.0, 20.0), wire=None)
    make_run("b", options={"k": 50}, status="diverged", value=None, compression=None, wire=None)
    head, first, second = table_text(summary_table(find_runs([tmp_path]))).splitlines()
    assert head.split() == (
        ["task", "method", "settings", "seed", "value", "upload", "download", "overall", "status"]
    )
    assert first.split() == (
        ["cifar10", "fetchsgd", "k=500", "0", "91.35", "%", "10×", "20×", "13.3×", "finished"]
    )
    assert second.split() == ["cifar10", "fetchsgd", "k=50", "0", *("–" * 4), "diverged"]


def test_a_small_value_of_another_metric_keeps_its_digits(make_run, tmp_path):
    make_run("a", metric="squared_error", value=0.0123)
    rows = summary_table(find_runs([tmp_path]))
    assert " 0.01230 " in table_text(rows)
    page = write_report([tmp_path / "runs"], tmp_path / "report.html", figures=False).page
    assert page.read_text(encoding="utf-8").count("0.01230") == 3  # table, point and curve


def test_one_task_has_one_metric(make_run, tmp_path):
    make_run("a")
    make_run("b", metric="perplexity", value=20.0)
    with pytest.raises(ReportError, match="the field 'metric' is 'perplexity', but other runs"):
        group_by_task(find_runs([tmp_path]))
