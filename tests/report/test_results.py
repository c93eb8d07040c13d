"""Results files: a report on one is the same as on the run folders."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from fetchsgd.report import (
    ReportError,
    find_runs,
    read_results,
    summary_table,
    write_report,
    write_results,
)


@pytest.fixture
def runs(make_run, tmp_path):
    """A folder of runs: seeds, fewer bits, an older version, and one that diverged."""
    for seed in (1, 0):
        make_run(f"seed{seed}", seed=seed, value=0.9 + 0.01 * seed)
    make_run("bits", numbers={"bits": 2, "grid": "steps", "step": 0.25}, wire=(90.0, 20.0))
    make_run("old", method="local_topk", options={"k": 5}, wire=None)
    make_run("bad", method="uncompressed", status="diverged", value=None, compression=None)
    return tmp_path / "runs"


@pytest.fixture
def published(runs, tmp_path):
    path = tmp_path / "results" / "study.jsonl"
    write_results(find_runs([runs]), path)
    return path


def changed(path, name, /, **changes):
    """The same file, with other fields in the line of one run."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [{**line, **changes} if line["name"] == name else line for line in lines]
    other = path.with_name("changed.jsonl")
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return other


def test_a_line_is_the_result_with_the_metrics(runs, published):
    lines = [json.loads(line) for line in published.read_text().splitlines()]
    assert [line["name"] for line in lines] == ["bad", "bits", "old", "seed0", "seed1"]
    for line in lines:
        folder = runs / line["name"]
        result = json.loads((folder / "result.json").read_text())
        assert list(line) == [*result, "metrics"]
        metrics = line.pop("metrics")
        assert line == result
        assert metrics == [
            json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()
        ]


def test_page_figures_and_table_are_those_of_the_folders(runs, published, tmp_path):
    from_folders = write_report([runs], tmp_path / "a" / "report.html")
    from_file = write_report([published], tmp_path / "b" / "report.html")
    assert summary_table(from_folders.runs) == summary_table(from_file.runs)
    for one, other in zip(
        [from_folders.page, *from_folders.figures],
        [from_file.page, *from_file.figures],
        strict=True,
    ):
        assert one.name == other.name
        assert one.read_bytes() == other.read_bytes()


def test_the_same_runs_give_the_same_bytes_in_any_order(runs, published, tmp_path):
    found = find_runs([runs])
    write_results(reversed(found), tmp_path / "again.jsonl")
    write_results(read_results(published), tmp_path / "copy.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == published.read_bytes()
    assert (tmp_path / "copy.jsonl").read_bytes() == published.read_bytes()
    assert {path.name for path in published.parent.iterdir()} == {"study.jsonl"}


def test_what_has_not_ended_is_left_out_and_named(make_run, tmp_path):
    make_run("done")
    make_run("going", status="unfinished")
    out = tmp_path / "results.jsonl"
    summary = write_results(find_runs([tmp_path / "runs"]), out)
    assert str(summary) == f"1 result: {out}; without going, which has not ended"
    assert [run.name for run in read_results(out)] == ["done"]


def test_without_any_result_there_is_no_file(make_run, tmp_path):
    make_run("going", status="unfinished")
    with pytest.raises(ReportError, match="not written, since no run has ended"):
        write_results(find_runs([tmp_path]), tmp_path / "results.jsonl")
    assert not (tmp_path / "results.jsonl").exists()


def test_what_is_not_finite_is_published_as_null(make_run, tmp_path):
    folder = make_run("bad", status="diverged", value=None)
    result = folder / "result.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "test_loss": float("nan")}))
    out = tmp_path / "results.jsonl"
    write_results(find_runs([folder]), out)
    assert json.loads(out.read_text())["test_loss"] is None
    assert len(find_runs([folder, out])) == 1


def test_a_run_in_a_folder_and_in_files_counts_once(runs, published, tmp_path):
    copy = shutil.copy(published, tmp_path / "copy.jsonl")
    alone = summary_table(find_runs([runs]))
    assert summary_table(find_runs([published, runs, tmp_path / copy])) == alone
    shutil.rmtree(runs / "old")
    assert summary_table(find_runs([runs, published])) == alone


@pytest.mark.parametrize("field", ["name", "seed", "method", "config"])
def test_what_differs_in_name_settings_or_seed_is_another_run(runs, published, field):
    line = json.loads(published.read_text().splitlines()[-1])
    config = {**line["config"], "method": {"name": "fetchsgd", "k": 7}}
    other = {"name": "other", "seed": 7, "method": "fedavg", "config": config}
    both = find_runs([runs, changed(published, "seed1", **{field: other[field]})])
    assert len(both) == 6


def test_a_run_that_is_trained_again_is_the_published_one_until_it_ends(runs, published):
    (runs / "old" / "result.json").unlink()
    assert {run.status for run in find_runs([runs, published])} == {"finished", "diverged"}


def test_the_same_run_with_other_results_is_a_mistake(runs, published):
    other = changed(published, "seed1", value=0.5)
    sentence = (
        rf"{re.escape(str(other))}, line 5 and {re.escape(str(runs / 'seed1'))}: the run 'seed1' "
        "has the same settings and seed in both but not the same results"
    )
    with pytest.raises(ReportError, match=sentence):
        find_runs([runs, other])


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"name": ', "not valid JSON"),
        ("[1, 2]", r"must hold one JSON object, got \[1, 2\]"),
        ("{}", "the field 'metrics' is missing"),
        ('{"metrics": []}', "the field 'status' is missing"),
        ('{"metrics": 3}', "the field 'metrics' must be a list of tables, got 3"),
        ('{"metrics": [{}, 3]}', "entry 2 of the field 'metrics' must be a table, got 3"),
    ],
)
def test_a_line_that_is_wrong_is_named_with_its_number(published, line, sentence):
    published.write_text(f"{published.read_text()}\n{line}\n")
    with pytest.raises(ReportError, match=rf"study\.jsonl, line 7: {sentence}"):
        find_runs([published])


def test_fields_that_are_missing_are_named(published):
    lines = published.read_text().splitlines()
    result = json.loads(lines[1])
    del result["metrics"][3]["round"]
    published.write_text("\n".join([lines[0], json.dumps(result)]))
    with pytest.raises(ReportError, match="line 2, metrics 4: the field 'round' is missing"):
        read_results(published)
    del result["upload_bytes"]
    published.write_text(json.dumps(result))
    with pytest.raises(ReportError, match="line 1: the field 'upload_bytes' is missing"):
        read_results(published)


def test_files_that_hold_nothing_or_are_not_there(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    for name, sentence in (
        ("empty.jsonl", "holds no run"),
        ("missing.jsonl", "cannot be read"),
        ("page.html", "no such folder, and not a .jsonl file"),
    ):
        with pytest.raises(ReportError, match=rf"{re.escape(name)}:? {sentence}"):
            find_runs([tmp_path / name])


def test_results_that_cannot_be_written(make_run, tmp_path):
    runs = find_runs([make_run()])
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match=r"results\.jsonl cannot be written"):
        write_results(runs, tmp_path / "file" / "results.jsonl")
