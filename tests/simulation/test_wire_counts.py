"""A simulation writes no messages; here all of them are written, and the bytes compared."""

import numpy as np
import pytest

from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run
from fetchsgd.wire import decode, encode

ROUNDS = 8


def uploads(run, weights, cohort, round):
    """What each client of the cohort sends, from its own gradient."""
    setup = run.setup
    for client in cohort.tolist():
        own = run.cohort.gatherer.gather(np.array([client]), round)
        vectors, _ = setup.trainer.client_vectors(weights, own, run.config.local, 0.0, None, 0)
        yield run.method.message.write(vectors[0], None, client, round, setup.upload(round))


def downloads(training, cohort):
    """What each client of the cohort fetches before it works."""
    for client in cohort.tolist():
        yield training.ledger.message(client, training.round, training.place)


@pytest.mark.parametrize(
    ("method", "sets"),
    [
        ("fetchsgd", ("k=500", "cols=32000", "bits=2", "grid=steps", "log=3")),
        ("fetchsgd", ("k=500", "cols=8000")),
        ("true_topk", ("k=500", "bits=2", "grid=bfloat16")),
        ("local_topk", ("k=500", "bits=4", "grid=steps")),
        ("uncompressed", ("bits=3", "grid=steps", "log=3")),
    ],
    ids=str,
)
def test_counted_bytes_are_those_of_all_messages_of_a_run(method, sets):
    """To half a percent, on the digits: real gradients, real positions, clients that come back."""
    given = {"task": {"name": "digits"}, "method": {"name": method}}
    run = Run(resolve(given, [*sets, "examples_per_client=20", "clients_per_round=6"]))
    up = down = 0
    training = run.start()
    for round in range(ROUNDS):
        cohort = run.setup.sampler.cohort(round)
        down += sum(len(encode(message)) for message in downloads(training, cohort))
        for message in uploads(run, training.weights, cohort, round):
            sent = encode(message)
            up += len(sent)
        assert decode(sent).round == round
        training, _ = next(run.train(training))
    counted = training.ledger.wire_bytes
    assert counted.up == pytest.approx(up, rel=0.005)
    assert counted.down == pytest.approx(down, rel=0.005)
