"""Whole runs of models that draw: equal seeds, resuming, rounds that differ."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fetchsgd.runs import checkpoint as checkpoints
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run

COHORT = np.array([7, 2, 9, 4, 0])
RUNS = [
    ("fetchsgd", ()),
    ("fetchsgd", ("bits=4",)),
    ("local_topk", ()),
    ("fedavg", ("local.epochs=2", "local.batch_size=2")),
    ("uncompressed", ("local.clip=0.5",)),
]
MODELS = ["layered", "functional", "skipping", "always"]


def make(method, *sets, model="layered"):
    given = {"task": {"name": "randommodels:task", "model": model}, "method": {"name": method}}
    return Run(resolve(given, sets))


def weights(folder):
    return load_file(folder / checkpoints.FILE)["weights"]


def measured(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["round"], line["accuracy"], line["test_loss"]) for line in lines]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("method", "sets"), RUNS, ids=str)
def test_equal_seeds_give_equal_runs(method, sets, model, tmp_path):
    for name in ("a", "b"):
        torch.manual_seed(ord(name))
        before = torch.get_rng_state()
        make(method, *sets, model=model).execute(tmp_path / name)
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert measured(tmp_path / "a") == measured(tmp_path / "b")


class StopError(Exception):
    pass


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("method", "sets"), RUNS, ids=str)
def test_resumed_equals_uninterrupted(method, sets, model, tmp_path):
    sets = (*sets, "checkpoint_every=2")
    make(method, *sets, model=model).execute(tmp_path / "whole")

    def stop(seen):
        if seen.round == 5:
            raise StopError

    with pytest.raises(StopError):
        make(method, *sets, model=model).execute(tmp_path / "cut", watch=stop)
    torch.manual_seed(11)
    make(method, *sets, model=model).execute(tmp_path / "cut", resume=True)
    assert torch.equal(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert measured(tmp_path / "cut") == measured(tmp_path / "whole")


@pytest.mark.parametrize(("method", "sets"), RUNS, ids=str)
def test_rounds_and_runs_draw_apart(method, sets):
    """The same weights and the same clients, in another round or with another seed."""
    run, other = make(method, *sets), make(method, *sets, "seed=1")
    at = run.setup.model.weights()
    first, again, later = (run.cohort(at, COHORT, 0.1, round, None).loss for round in (3, 3, 4))
    assert first == again
    assert first != later
    assert other.cohort(at, COHORT, 0.1, 3, None).loss != first


def test_chunks_of_a_cohort_draw_apart(monkeypatch):
    """A cohort of one client twice, in chunks of one client: two different losses."""
    run = make("local_topk", model="functional")
    monkeypatch.setattr("fetchsgd.simulation.cohort.CHUNK_BYTES", {"cpu": 4 * run.setup.model.dim})
    twice = np.array([9, 9])
    at = run.setup.model.weights()
    both = run.cohort(at, twice, 0.1, 0, None).loss
    once = run.cohort(at, twice[:1], 0.1, 0, None).loss
    assert both != once


def test_what_dropout_layers_drop_does_not_depend_on_chunks(monkeypatch):
    run = make("local_topk")
    at = run.setup.model.weights()
    whole = run.cohort(at, COHORT, 0.1, 0, None)
    monkeypatch.setattr("fetchsgd.simulation.cohort.CHUNK_BYTES", {"cpu": 4 * run.setup.model.dim})
    chunked = run.cohort(at, COHORT, 0.1, 0, None)
    torch.testing.assert_close(chunked.mean, whole.mean)
    torch.testing.assert_close(chunked.loss, whole.loss)
