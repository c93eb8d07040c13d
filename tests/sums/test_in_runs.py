"""Whole runs with sums modulo 2^b: they train, are recorded and resumed, and refuse what cannot."""

import numpy as np
import pytest
import torch

from fetchsgd.errors import UserError
from fetchsgd.runs.settings import resolve
from fetchsgd.runs.setup import Setup
from fetchsgd.secure import parameters, protocol_bytes
from fetchsgd.simulation import Run
from fetchsgd.sums.layout import Layout
from fetchsgd.wire import decode, encode

MODULAR = ("upload.sum=modular", "upload.first_step=0.1")


def tiny(method, *sets):
    given = {"task": {"name": "tinytask:tiny"}, "method": {"name": method}}
    return resolve(given, ["train.device=cpu", "epochs=5", *sets])


@pytest.mark.parametrize(
    ("method", "sets"),
    [
        ("fetchsgd", ("method.hash=fresh",)),
        ("fetchsgd", ("method.hash=fixed",)),
        ("true_topk", ()),
        ("uncompressed", ("train.averaging=examples",)),
        ("fedavg", ()),
    ],
    ids=str,
)
def test_methods_that_add_up_train_as_with_exact_sums(method, sets):
    fine = ("upload.sum_bits=16", "upload.sum_step=0.001", "upload.sum_clip=1")
    ours = Run(tiny(method, *MODULAR, *fine, *sets)).complete().summary
    theirs = Run(tiny(method, *sets)).complete().summary
    assert ours["sum_wraps"] == ours["sum_clipped"] == 0
    assert ours["test_loss"] == pytest.approx(theirs["test_loss"], abs=0.02)


def test_real_messages_are_those_that_a_simulation_counts_and_sums():
    run = Run(tiny("uncompressed", *MODULAR, "train.averaging=examples"))
    training = run.start()
    setup, message, gatherer = run.setup, run.method.message, run.cohort.gatherer
    for round in range(3):
        cohort, bytes = setup.sampler.cohort(round), 0
        upload = setup.upload(round, training.size)
        layout = Layout.of(message.numbers)
        total, weight = torch.zeros(layout.cells, dtype=torch.int64), 0
        for client in cohort.tolist():
            own = gatherer.gather(np.array([client]), round)
            vectors, _ = setup.trainer.client_vectors(
                training.weights, own, run.config.local, 0.0, None, 0
            )
            examples = torch.from_numpy(gatherer.weights(np.array([client])))
            mine = upload._replace(quantiser=upload.quantiser.weighing(examples))
            data = encode(message.write(vectors[0], None, client, round, mine))
            values = decode(data).values
            total, weight, bytes = total + values.cells, weight + values.weight, bytes + len(data)
        before = training.ledger.wire_bytes.up
        opened = upload.quantiser.open(total % 256, weight, layout)
        training, merged = next(run.train(training))
        # Gradients of a client alone differ in the last bits, which may tip a rounding or two.
        assert (merged.mean - opened.mean).abs().max() <= 2 * float(upload.quantiser.step) / weight
        assert training.ledger.wire_bytes.up - before == bytes


def test_bytes_are_those_of_the_protocol():
    """Which are those that its state machines send (tests/secure/test_sizes.py)."""
    without = Run(tiny("true_topk", *MODULAR)).complete().summary
    run = Run(tiny("true_topk", *MODULAR, "upload.secure=true"))
    secure = run.complete().summary
    assert secure["value"] == without["value"]
    cells, header = Layout.of(run.method.message.numbers).cells, 64
    up = down = 0
    for round in range(run.rounds):
        n = len(run.setup.sampler.cohort(round))
        if n <= 2:  # too few for a protocol: messages alone
            up += n * (header + run.setup.quantiser.fixed_bytes(run.method.message.numbers))
            continue
        phases = protocol_bytes(n, parameters(n, 0.1, 0.1).degree, cells, 8, 2).values()
        up, down = up + sum(p.up for p in phases), down + sum(p.down for p in phases)
    assert secure["wire_upload_bytes"] == up
    assert secure["wire_download_bytes"] - without["wire_download_bytes"] == down
    for way in ("upload", "download"):
        assert secure[f"{way}_bytes"] == without[f"{way}_bytes"]


def test_a_resumed_run_ends_as_one_that_was_not_stopped(tmp_path):
    config = tiny("fetchsgd", *MODULAR, "train.checkpoint_every=5", "train.eval_every=2")
    whole = Run(config).execute(tmp_path / "whole")

    class StopError(Exception):
        pass

    def stop(progress):
        if progress.round == 12:
            raise StopError

    with pytest.raises(StopError):
        Run(config).execute(tmp_path / "cut", watch=stop)
    resumed = Run(config).execute(tmp_path / "cut", resume=True)
    kept = [k for k in whole if k.startswith("sum_") or k in ("value", "test_loss")]
    assert len(kept) == 6
    assert {k: resumed[k] for k in kept} == {k: whole[k] for k in kept}


class TestRefused:
    def test_methods_that_do_not_add_up(self):
        with pytest.raises(UserError, match="needs messages that add up, and those of local_topk"):
            Setup(tiny("local_topk", *MODULAR))

    @pytest.mark.parametrize("quantiser", ["step", "shared_step", "eden"])
    def test_other_quantisers(self, quantiser):
        config = tiny("uncompressed", *MODULAR, f"upload.quantiser={quantiser}")
        with pytest.raises(UserError, match="rounds by itself.*leave out upload.quantiser"):
            Setup(config)

    def test_cohorts_that_are_too_small_for_a_protocol(self):
        config = tiny("uncompressed", *MODULAR, "upload.secure=true", "upload.dropping=0.49")
        with pytest.raises(UserError, match="no threshold suits 4 clients"):
            Setup(config)

    def test_its_options_without_it(self):
        with pytest.raises(UserError, match="sum = 'plain' has no option 'sum_bits', modular has"):
            tiny("uncompressed", "upload.sum_bits=8")
