"""Backward passes as CUDA graphs: the same numbers, without waiting for the device."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from waiting import nothing_waits

from fetchsgd.clients import trainer as trainers
from fetchsgd.clients.graphs import uncollected
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run


def train(method, *sets, rounds=8, task="digits"):
    given = {"task": {"name": task}, "method": {"name": method}}
    run = Run(resolve(given, ["device=cuda", *sets]))
    steps = run.train(run.start(), rounds)
    trained = [(training.weights, merged.loss) for training, merged in steps]
    return torch.stack([w for w, _ in trained]), torch.stack([loss for _, loss in trained])


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["uncompressed", "fetchsgd"])
def test_recorded_equals_launched_one_by_one(method):
    """Cohorts of two shapes: the last of an epoch is smaller."""
    sets = (
        ("clients_per_round=100", "k=2000") if method == "fetchsgd" else ("clients_per_round=100",)
    )
    recorded, losses = train(method, *sets)
    launched, plain_losses = train(method, *sets, "cuda_graphs=false")
    torch.testing.assert_close(losses, plain_losses, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(recorded, launched, rtol=1e-2, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["uncompressed", "local_topk", "fedavg"])
def test_clients_of_many_sizes(method, monkeypatch):
    """Padded to a few shapes, for the cohort as one batch and for one client after another."""
    monkeypatch.setattr(trainers, "LARGE_CLIENT", 0)
    sets = ("local.epochs=2", "local.batch_size=2") if method == "fedavg" else ()
    recorded, losses = train(method, *sets, task="tinytask:tiny")
    launched, plain = train(method, *sets, "cuda_graphs=false", task="tinytask:tiny")
    torch.testing.assert_close(losses, plain, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(recorded, launched, rtol=1e-2, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("method", "sets"),
    [
        ("fetchsgd", ("k=500", "cols=8000")),
        ("fetchsgd", ("k=500", "cols=8000", "upload.bits=2")),
        ("fetchsgd", ("k=500", "cols=8000", "download.grid=float16")),
        ("true_topk", ("k=500", "upload.bits=2", "download.grid=steps")),
        ("fetchsgd", ("k=500", "cols=8000", "diagnose=true", "diagnose_every=1")),
        ("uncompressed", ()),
        ("true_topk", ("k=500",)),
        ("true_topk", ("k=500", "diagnose=true", "diagnose_every=1")),
        ("local_topk", ("k=500",)),
        ("local_topk", ("k=500", "upload.bits=4")),
        ("fedavg", ("local.epochs=2",)),
    ],
    ids=str,
)
def test_nothing_in_a_round_waits_for_the_device(method, sets):
    run = Run(resolve({"method": {"name": method}}, ["device=cuda", *sets]))
    steps = run.train(run.start())
    for _ in range(3):  # in which things are made that last
        next(steps)
    with nothing_waits():
        for _ in range(3):
            next(steps)


# --- models that draw


DRAWING = "randommodels:task"


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["layered", "functional", "skipping", "always"])
@pytest.mark.parametrize("method", ["uncompressed", "local_topk"])
def test_recorded_draws_are_those_of_launched_passes(method, model, monkeypatch):
    """As one batch, and one client after another; padding would change who draws what."""
    monkeypatch.setattr(trainers, "LARGE_CLIENT", 0)
    monkeypatch.setattr("fetchsgd.clients.gathering.rounded_up", lambda count: count)
    sets = (f"task.model={model}",)
    recorded, losses = train(method, *sets, task=DRAWING)
    launched, plain = train(method, *sets, "cuda_graphs=false", task=DRAWING)
    torch.testing.assert_close(losses, plain, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(recorded, launched, rtol=1e-2, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", ["true", "false"])
@pytest.mark.parametrize("model", ["layered", "functional", "skipping", "always"])
@pytest.mark.parametrize("method", ["uncompressed", "local_topk", "fedavg"])
def test_draws_on_the_device_follow_from_the_round(method, model, graphs):
    """Also in the round in which a graph is recorded, and in a run that records in another."""
    cohort = np.array([7, 2, 9, 4, 0])

    def losses(*rounds):
        given = {"task": {"name": DRAWING, "model": model}, "method": {"name": method}}
        run = Run(resolve(given, ["device=cuda", f"cuda_graphs={graphs}"]))
        weights = run.setup.model.weights()
        before = torch.get_rng_state(), torch.cuda.get_rng_state()
        found = [float(run.cohort(weights, cohort, 0.1, i, None).loss) for i in rounds]
        assert torch.equal(torch.get_rng_state(), before[0])
        assert torch.equal(torch.cuda.get_rng_state(), before[1])
        return found

    third, again, fourth = losses(3, 3, 4)
    assert third == again
    assert third != fourth
    torch.cuda.manual_seed(5)
    assert losses(4, 3) == [fourth, third]


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["uncompressed", "local_topk", "fedavg"])
def test_draws_do_not_wait_for_the_device(method):
    given = {"task": {"name": DRAWING, "model": "layered"}, "method": {"name": method}}
    run = Run(resolve(given, ["device=cuda"]))
    weights, cohort = run.setup.model.weights(), np.array([7, 2, 9, 4, 0])
    run.cohort(weights, cohort, 0.1, 0, None)
    with nothing_waits():
        run.cohort(weights, cohort, 0.1, 1, None)


@pytest.mark.gpu
def test_a_model_that_cannot_be_recorded_gets_a_sentence(tmp_path):
    """In a process of its own, since a recording that fails leaves CUDA's generator unusable."""

    def command(out, *sets):
        assignments = ["task.model=skipping_on_gpu", "device=cuda", *sets]
        options = [part for text in assignments for part in ("--set", text)]
        return [sys.executable, "-m", "fetchsgd", "train", DRAWING, "--out", str(out), *options]

    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    }
    failed = subprocess.run(
        command(tmp_path / "recorded"), env=environment, capture_output=True, text=True, check=False
    )
    assert failed.returncode == 2
    assert "train.cuda_graphs=false" in " ".join(failed.stderr.split())
    launched = command(tmp_path / "launched", "cuda_graphs=false")
    subprocess.run(launched, env=environment, capture_output=True, check=True)


# --- garbage


@pytest.mark.parametrize("was_on", [True, False])
def test_garbage_waits_until_a_recording_is_over(was_on):
    try:
        if not was_on:
            gc.disable()
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() == was_on
    finally:
        gc.enable()
