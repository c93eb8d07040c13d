"""Parts from outside the package in a simulation: trained, resumed, counted, reported."""

import numpy as np
import pytest
import torch
from outside.settings import given
from safetensors.torch import load_file

from fetchsgd.report import write_report
from fetchsgd.report.runs import load_run
from fetchsgd.runs.checkpoint import FILE
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run
from fetchsgd.wire import decode, encode

KEEPS = pytest.mark.parametrize("keep", [False, True], ids=["forgets", "keeps"])


def run_of(**sections):
    return Run(resolve(given(**sections)))


@KEEPS
def test_it_learns_on_its_grid(keep, tmp_path):
    many = {"epochs": 30.0, "eval_every": 10.0}
    run = run_of(method={"keep": keep}, train=many, schedule={"peak": 0.5})
    result = run.execute(tmp_path / "run")
    assert result["status"] == "finished"
    assert result["value"] > 0.9
    found = load_file(tmp_path / "run" / FILE)
    assert {"state.average", "state.count", "state.left_over"} <= set(found)
    assert ("memory.unsent" in found) == keep
    assert int(found["state.count"]) == result["rounds"]
    expected = run.setup.origin + found["steps"].float() * 2**-12
    assert torch.equal(found["weights"], expected)


class StoppedError(Exception):
    pass


def stop_at(round):
    def watch(progress):
        if progress.round == round:
            raise StoppedError

    return watch


@KEEPS
def test_resumed_equals_uninterrupted(keep, tmp_path):
    every = {"checkpoint_every": 2}
    sections = {"method": {"keep": keep}, "train": every}
    run_of(**sections).execute(tmp_path / "whole")
    with pytest.raises(StoppedError):
        run_of(**sections).execute(tmp_path / "cut", watch=stop_at(5))
    assert not (tmp_path / "cut" / "result.json").exists()
    run_of(**sections).execute(tmp_path / "cut", resume=True)
    whole, cut = (load_file(tmp_path / name / FILE) for name in ("whole", "cut"))
    assert whole.keys() == cut.keys()
    assert [name for name in whole if not torch.equal(whole[name], cut[name])] == []


def test_counted_bytes_are_those_of_all_messages():
    """Both ways, with clients that come back; every message can be read again."""
    run = run_of(train={"epochs": 2.0})
    training, up, down = run.start(), 0, 0
    for round in range(run.setup.rounds):
        cohort = run.setup.sampler.cohort(round)
        for client in cohort.tolist():
            down += len(encode(training.ledger.message(client, round, training.place)))
            up += len(sent := encode(written(run, training.weights, client, round)))
            assert decode(sent).round == round
        training, _ = next(run.train(training))
    counted = training.ledger.wire_bytes
    assert (counted.up, counted.down) == (up, down)


def written(run, weights, client, round):
    own = run.cohort.gatherer.gather(np.array([client]), round)
    vectors, _ = run.setup.trainer.client_vectors(weights, own, run.config.local, 0.0, None, 0)
    return run.method.message.write(vectors[0], None, client, round, run.setup.upload(round))


def test_the_report_tells_its_runs_apart(tmp_path):
    """By options of theirs, also where our own parts have options of the same names."""
    for number, sections in enumerate(
        ({}, {"upload": {"stretch": 3.0}}, {"download": {"step": 2**-8}}, {"method": {"k": 40}})
    ):
        run_of(**sections).execute(tmp_path / "runs" / f"run{number}")
    runs = [load_run(tmp_path / "runs" / f"run{number}") for number in range(4)]
    assert {run.method for run in runs} == {"outside.random_k:RandomK"}
    assert all(run.series.low_bit for run in runs)
    assert runs[0].settings["download.step"] == 2**-12
    assert "upload.bits" not in runs[0].settings
    page = tmp_path / "report.html"
    write_report([tmp_path / "runs"], page)
    text = page.read_text()
    for word in ("outside.random_k:RandomK", "stretch", "0.00390625", "outside.ternary:Ternary"):
        assert word in text, word
