"""Published rows are had again by their names, and what differs is said."""

import json
from pathlib import Path

import pytest

from fetchsgd.report.runs import load_run, write_results
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation.run import Run


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """The lines of three seeds, as they are published."""
    folder = tmp_path_factory.mktemp("published")
    runs = []
    for seed in (0, 1, 2):
        given = {"task": {"name": "tinytask:tiny"}, "train": {"seed": seed}}
        Run(resolve(given)).execute(folder / f"tiny-seed{seed}")
        runs.append(load_run(folder / f"tiny-seed{seed}"))
    write_results(runs, folder / "tiny.jsonl")
    return [json.loads(line) for line in (folder / "tiny.jsonl").read_text().splitlines()]


@pytest.fixture
def results(lines, tmp_path, monkeypatch):
    """A folder of results to change, from which the command starts."""
    monkeypatch.chdir(tmp_path)

    def write(*changed, file="tiny"):
        path = tmp_path / "results" / f"{file}.jsonl"
        path.parent.mkdir(exist_ok=True)
        chosen = [
            {**line, **change} for line, change in zip(lines, changed or [{}] * 3, strict=False)
        ]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in chosen))
        return path

    write()
    return write


def test_rows_are_listed(results, here):
    code, out, _ = here("reproduce")
    assert code == 0
    assert "tiny/tiny-seed1  " in out
    assert "3 rows" in out


def test_a_row_is_had_again_to_the_bit(results, here, tmp_path):
    code, out, err = here("reproduce", "tiny-seed1", "--out", "again")
    assert code == 0, err
    assert "1 row: 1 equal to the bit" in out
    assert (tmp_path / "again/tiny/tiny-seed1/result.json").exists()


def test_every_row_of_a_file_by_its_name_or_a_pattern(results, here):
    for name in ("tiny", "results/tiny.jsonl", "tiny/*"):
        code, out, _ = here("reproduce", name, "--out", "again")
        assert code == 0
        assert "3 rows: 3 equal to the bit" in out


def test_what_seeds_explain_and_what_they_do_not(results, here, lines):
    value = lines[0]["value"]
    results({"value": value - 0.05}, {"value": value}, {"value": value - 0.1})
    code, out, _ = here("reproduce", "tiny-seed0")
    assert code == 0
    assert "within the noise of seeds: one more of 3 seeds would have" in out
    results(*({"wire_upload_bytes": line["wire_upload_bytes"] - 1} for line in lines))
    code, out, _ = here("reproduce", "tiny-seed0")
    assert code == 1
    assert "differs by more than seeds do: bytes up" in out
    results({"value": value / 2})
    code, out, _ = here("reproduce", "tiny-seed0")
    assert code == 1
    assert "differs (value); one published seed does not say" in out
    results({"status": "diverged", "value": None})
    code, out, _ = here("reproduce", "tiny-seed0")
    assert code == 1
    assert "differs: it diverged then, and finished now" in out


def test_older_settings_mean_what_they_meant(results, here, lines):
    """A line without `method.hash` is of the paper's form, and options without effect go."""
    config = lines[0]["config"]
    method = {k: v for k, v in config["method"].items() if k != "hash"}
    older = {**config, "method": method, "download": {"grid": "float32", "step": 0.125}}
    results({"config": older})
    _, out, _ = here("reproduce", "tiny-seed0", "--out", "again")
    assert "1 row: 1 differ" in out
    again = json.loads(Path("again/tiny/tiny-seed0/result.json").read_text())
    assert again["config"]["method"]["hash"] == "fixed"


def test_what_cannot_be_run_here_is_said(results, here, lines, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    elsewhere = {**lines[0]["config"], "task": {"name": "gone:task"}}
    results({"hardware": "NVIDIA H200"}, {"config": elsewhere}, {})
    code, out, err = here("reproduce", "tiny")
    assert code == 1
    assert "tiny/tiny-seed0: cannot be run here: it took" in err
    assert "torch finds no GPU here; --device cpu runs it all the same" in err
    assert "cannot import 'gone'" in err
    assert "3 rows: 1 equal to the bit, 2 not run" in out
    code, out, _ = here("reproduce", "tiny-seed0", "--device", "cpu")
    assert code == 0


def test_names_that_mean_nothing_or_too_much(results, here):
    code, _, err = here("reproduce", "tiny-seed7")
    assert code == 2
    assert "there is no row 'tiny-seed7' in the results; did you mean 'tiny-seed" in err
    results(file="other")
    code, _, err = here("reproduce", "tiny-seed0")
    assert code == 2
    assert "'tiny-seed0' stands for several rows: other/tiny-seed0, tiny/tiny-seed0" in err
    code, _, err = here("reproduce", "--results", "nowhere")
    assert code == 2
    assert "there are no results at nowhere: start from the folder of a checkout" in err
