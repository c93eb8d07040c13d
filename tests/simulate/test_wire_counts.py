"""A simulation writes no messages; here all of them are written, and the bytes compared."""

import pytest
import torch

from fetchsgd.quantisers.levels import Rounding, quantise
from fetchsgd.quantisers.upload import Upload
from fetchsgd.randomness import number
from fetchsgd.runs.settings import resolve
from fetchsgd.server.downloads import FloatDownloads
from fetchsgd.server.rounds import train_rounds
from fetchsgd.simulate import Run
from fetchsgd.wire import (
    DenseVector,
    Floats,
    SketchTable,
    SparseUpdate,
    decode,
    encode,
)

ROUNDS = 8


def content(values, bits, seed, round, client):
    if bits == 32:
        return Floats(values)
    return quantise(values, bits, Rounding(number(seed, "quantise", round), client))


def uploads(run, weights, cohort, rate, round):
    """What each client of the cohort sends, from its own gradient."""
    exact = Upload(32, 0)
    alone = type(run.clients)(
        run.clients.data, run.trainer, run.method, run.clients.work, exact, "uniform", 0
    )
    for client in cohort.tolist():
        mean = alone(weights, torch.tensor([client]).numpy(), rate, round, None).mean
        bits = run.clients.upload.bits
        if run.config.method == "local_topk":
            places = mean.nonzero().squeeze(1)
            sent = content(mean[places], bits, 0, round, client)
            yield SparseUpdate(len(mean), places, sent, round)
        elif run.config.method == "fetchsgd":
            sketch = run.method.sketch
            sent = content(mean.flatten(), bits, 0, round, client)
            yield SketchTable(sketch.dim, sketch.rows, sketch.cols, sketch.block, 0, sent, round)
        else:
            yield DenseVector(content(mean, bits, 0, round, client), round)


def downloads(training, cohort):
    """What each client of the cohort fetches before it works."""
    ledger, position = training.ledger, training.position
    for client in cohort.tolist():
        held = int(ledger.held[client])
        if isinstance(ledger.downloads, FloatDownloads):
            changed = (ledger.changed > held).nonzero().squeeze(1)
            yield ledger.downloads.message(changed, position, training.round, held)
        else:
            yield ledger.downloads.message(held, position)


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
        cohort = run.sampler.cohort(round)
        down += sum(len(encode(message)) for message in downloads(training, cohort))
        rate = run.rate(round)
        for message in uploads(run, training.weights, cohort, rate, round):
            sent = encode(message)
            up += len(sent)
        assert decode(sent).round == round
        steps = train_rounds(
            training, round + 1, run.sampler.cohort, run.rate, run.clients, run.method, run.grid
        )
        training, _ = next(iter(steps))
    counted = training.ledger.wire_bytes
    assert counted.up == pytest.approx(up, rel=0.005)
    assert counted.down == pytest.approx(down, rel=0.005)
