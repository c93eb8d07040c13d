import gc

import pytest
import torch
from waiting import nothing_waits

from fetchsgd.clients import trainer as trainers
from fetchsgd.clients.graphs import uncollected
from fetchsgd.runs.settings import resolve
from fetchsgd.server.rounds import train_rounds
from fetchsgd.simulate import Run


def train(method, *sets, rounds=8, task="digits"):
    given = {"task": {"name": task}, "method": {"name": method}}
    run = Run(resolve(given, ["device=cuda", *sets]))
    steps = train_rounds(
        run.start(), rounds, run.sampler.cohort, run.rate, run.clients, run.method, run.grid
    )
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
    """Filled up to a few shapes, for the cohort as one batch and for one client after another."""
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
    server_rate = None if run.config.local.is_one_gradient else 1.0
    steps = train_rounds(
        run.start(), run.rounds, run.sampler.cohort, run.rate, run.clients, run.watched, run.grid,
        server_rate,
    )  # fmt: skip
    for _ in range(3):  # in which things are made that last
        next(steps)
    with nothing_waits():
        for _ in range(3):
            next(steps)


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
