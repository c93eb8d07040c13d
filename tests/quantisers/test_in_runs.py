"""Quantisers in whole runs: settings, bytes counted, real clients, and runs that are resumed."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fetchsgd.errors import UserError
from fetchsgd.runs import checkpoint as checkpoints
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run
from fetchsgd.wire import decode, encode

ROUNDS = 5
SETTINGS = [
    ("uncompressed", ("quantiser=step",)),
    ("true_topk", ("quantiser=step", "upload.tau=2", "upload.bytes=3000")),
    ("fetchsgd", ("quantiser=step", "upload.tau=1", "cols=32000")),
    ("local_topk", ("quantiser=step", "upload.tau=0.1", "k=2000")),
    ("uncompressed", ("quantiser=eden", "rate=0.5")),
]


def digits(method, *sets):
    given = {"task": {"name": "digits"}, "method": {"name": method}}
    return Run(resolve(given, [*sets, "examples_per_client=20", "clients_per_round=6"]))


def written(run, weights, cohort, round):
    """What each client of the cohort sends, from its own gradient."""
    setup = run.setup
    for client in cohort.tolist():
        own = run.cohort.gatherer.gather(np.array([client]), round)
        vectors, _ = setup.trainer.client_vectors(weights, own, run.config.local, 0.0, None, 0)
        yield run.method.message.write(vectors[0], None, client, round, setup.upload(round))


@pytest.mark.parametrize(("method", "sets"), SETTINGS, ids=str)
def test_real_messages_are_those_that_a_simulation_counts_and_sums(method, sets):
    run = digits(method, *sets)
    training, sent = run.start(), 0
    message, quantiser = run.method.message, run.setup.quantiser
    for round in range(ROUNDS):
        cohort = run.setup.sampler.cohort(round)
        total = torch.zeros(message.shape, dtype=torch.float64)
        for payload in written(run, training.weights, cohort, round):
            data = encode(payload)
            assert len(data) <= message.most_bytes(quantiser)
            sent += len(data)
            message.add(total, message.read(decode(data)), 1 / len(cohort))
        training, merged = next(run.train(training))
        # Gradients of a client alone differ in the last bits, which may tip a rounding or two.
        tipped = (merged.mean - total).abs() > 1e-5 * total.abs().max()
        assert tipped.float().mean() < 0.002
    assert training.ledger.wire_bytes.up == pytest.approx(sent, rel=0.005)


class StopError(Exception):
    pass


@pytest.mark.parametrize(
    ("method", "sets"),
    [
        ("fetchsgd", ("quantiser=step", "upload.tau=0.5")),
        ("uncompressed", ("quantiser=step", "upload.tau=0.1", "upload.bytes=250")),
        ("uncompressed", ("quantiser=eden", "rate=2")),
    ],
    ids=str,
)
def test_resumed_equals_uninterrupted(method, sets, tmp_path):
    def make():
        given = {"task": {"name": "tinytask:tiny"}, "method": {"name": method}}
        return Run(resolve(given, (*sets, "checkpoint_every=2")))

    def stop(seen):
        if seen.round == 5:
            raise StopError

    make().execute(tmp_path / "whole")
    with pytest.raises(StopError):
        make().execute(tmp_path / "cut", watch=stop)
    make().execute(tmp_path / "cut", resume=True)
    cut, whole = (load_file(tmp_path / name / checkpoints.FILE) for name in ("cut", "whole"))
    assert torch.equal(cut["weights"], whole["weights"])


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (("quantiser=step", "upload.tau=0"), "tau must be from"),
        (("quantiser=step", "upload.bytes=-3"), "bytes must be a whole number"),
        (("quantiser=step", "bits=4"), "step has no option 'bits', bits has"),
        (("quantiser=eden", "rate=7"), "rate must be 1, 2, 3, 4"),
        (("upload.tau=4",), "bits has no option 'tau', step has"),
    ],
    ids=str,
)
def test_mistakes_are_sentences(sets, sentence):
    with pytest.raises(UserError, match=sentence):
        _ = resolve({"task": {"name": "tinytask:tiny"}}, sets).quantiser
