"""Folders and results from before FetchSGD had a choice of hashes: they are the paper's form."""

import sys

import pytest
import torch
from safetensors.torch import load_file

from fetchsgd.cli.main import main
from fetchsgd.report.runs import find_runs, load_run, write_results
from fetchsgd.report.styles import series_styles
from fetchsgd.runs.checkpoint import FILE
from fetchsgd.runs.older import PAPERS_FORM, as_meant, going_on
from fetchsgd.runs.settings import changes, resolve
from fetchsgd.runs.toml_files import read_toml, write_toml
from fetchsgd.simulation import Run
from fetchsgd.simulation.sweep import plan
from fetchsgd.simulation.sweep_jobs import run_sweep

TINY = {"task": {"name": "tinytask:tiny"}}
PAPER = {**TINY, "method": {"name": "fetchsgd", "hash": "fixed"}}
NEW = ("hash", "decode", "noise_limit", "revisit", "revisit_rounds")


class StopError(Exception):
    pass


def older(settings):
    """As an older version has written them."""
    method = {key: value for key, value in settings["method"].items() if key not in NEW}
    download = {key: value for key, value in settings["download"].items() if key != "coarse"}
    return {**settings, "method": method, "download": download}


def cut_off(folder, given=PAPER):
    """A run of an older version that was stopped in its fifth round."""
    run = Run(resolve(given, ["checkpoint_every=2"]))

    def stop(seen):
        if seen.round == 5:
            raise StopError

    with pytest.raises(StopError):
        run.execute(folder, watch=stop)
    config = folder / "config.toml"
    config.write_text(write_toml(older(read_toml(config))))


def assert_same_bits(one, other):
    before, after = load_file(one / FILE), load_file(other / FILE)
    for name in ("weights", "state.momentum", "state.error"):
        assert torch.equal(before[name], after[name])


def command(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["fetchsgd", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_settings_of_then_say_what_went_without_saying():
    assert as_meant({"method": {"name": "fetchsgd", "k": 3}})["method"]["hash"] == "fixed"
    now = {"method": {"name": "fetchsgd", "hash": "fresh"}}
    assert as_meant(now) == now
    for other in ({"method": {"name": "true_topk"}}, {"method": {"name": "own:Method"}}, {}):
        assert as_meant(other) == other


def test_a_folder_of_then_goes_on_as_the_paper_s_form(tmp_path, monkeypatch, capsys):
    cut_off(tmp_path / "cut")
    Run(resolve(PAPER, ["checkpoint_every=2"])).execute(tmp_path / "whole")
    words = ["train", "tinytask:tiny", "--set", "checkpoint_every=2", "--resume", "--out"]
    assert not command(monkeypatch, *words, tmp_path / "cut"), capsys.readouterr().err
    assert_same_bits(tmp_path / "cut", tmp_path / "whole")
    assert not command(monkeypatch, *words, tmp_path / "cut")  # which has ended, and says so again


def test_one_on_a_grid_of_steps_goes_on_with_single_steps(tmp_path, monkeypatch, capsys):
    given = {**PAPER, "download": {"grid": "steps", "coarse": False}}
    cut_off(tmp_path / "cut", given)
    Run(resolve(given, ["checkpoint_every=2"])).execute(tmp_path / "whole")
    words = ["train", "tinytask:tiny", "--set", "checkpoint_every=2", "--set", "grid=steps"]
    words += ["--resume", "--out"]
    assert not command(monkeypatch, *words, tmp_path / "cut"), capsys.readouterr().err
    assert_same_bits(tmp_path / "cut", tmp_path / "whole")
    assert "coarse" not in read_toml(tmp_path / "cut" / "config.toml")["download"]


def test_so_does_one_of_a_sweep(tmp_path):
    cut_off(tmp_path / "fetchsgd-k20")
    Run(resolve(PAPER, ["checkpoint_every=2"])).execute(tmp_path / "whole")
    content = {**TINY, "train": {"checkpoint_every": 2}, "sweep": [{"method.k": 20}]}
    (outcome,) = run_sweep(plan(content, "the test"), tmp_path, 1, lambda _: None)
    assert outcome.status == "finished", outcome.message
    assert_same_bits(tmp_path / "fetchsgd-k20", tmp_path / "whole")
    (again,) = run_sweep(plan(content, "the test"), tmp_path, 1, lambda _: None)
    assert again.status == "skipped"


def test_whoever_asks_for_another_hash_is_told(tmp_path, monkeypatch, capsys):
    cut_off(tmp_path / "cut")
    words = ["train", "tinytask:tiny", "--set", "checkpoint_every=2", "--set", "hash=fresh"]
    assert command(monkeypatch, *words, "--resume", "--out", tmp_path / "cut") == 2
    assert "method.hash was 'fixed' and is now 'fresh'" in capsys.readouterr().err
    given = {"method": {"name": "true_topk"}}
    assert going_on(given, tmp_path / "cut") is given
    assert going_on(given, tmp_path / "nothing") is given


def test_a_federation_of_then_is_not_taken_for_one_of_now():
    """Its clients have their own settings, so the server cannot choose for them."""
    now = resolve(TINY).settings
    assert changes(older(now), now) == [
        "method.hash was 'fixed' and is now 'fresh'",
        "download.coarse was False and is now True",
    ]
    papers = resolve(PAPER).settings
    assert changes(older(papers), papers) == []


def test_reports_tell_the_two_forms_apart(tmp_path):
    cut_off(tmp_path / "runs" / "then")
    Run(resolve(PAPER)).execute(tmp_path / "runs" / "paper")
    Run(resolve(TINY)).execute(tmp_path / "runs" / "now")
    runs = {run.name: run for run in find_runs([tmp_path / "runs"])}
    assert {name: run.method for name, run in runs.items()} == {
        "then": PAPERS_FORM, "paper": PAPERS_FORM, "now": "fetchsgd",
    }  # fmt: skip
    assert runs["then"].settings == runs["paper"].settings
    assert "method.error_reset" not in runs["now"].settings
    assert "method.decode" not in runs["paper"].settings
    styles = series_styles(run.series for run in runs.values())
    assert [style.label for style in styles.values()] == ["FetchSGD", "FetchSGD (paper)"]
    write_results([runs["paper"], runs["now"]], tmp_path / "results.jsonl")
    text = (tmp_path / "results.jsonl").read_text().replace('"hash": "fixed", ', "")
    (tmp_path / "older.jsonl").write_text(text)
    published = {run.name: run for run in find_runs([tmp_path / "older.jsonl"])}
    assert published["paper"].method == PAPERS_FORM
    assert published["paper"].settings == load_run(tmp_path / "runs" / "paper").settings
