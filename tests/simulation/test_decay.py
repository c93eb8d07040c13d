"""Weight decay is the same whoever adds it, and a server that does saves clients' bytes."""

import pytest
import torch

from fetchsgd.errors import UserError
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation import Run

DECAY = ("weight_decay=0.05", "epochs=4")


def trained(*sets, method="fetchsgd"):
    given = {"task": {"name": "tinytask:tiny"}, "method": {"name": method}}
    run = Run(resolve(given, [*DECAY, *sets]))
    *_, (training, _) = run.train(run.start())
    return run, training


@pytest.mark.parametrize(
    ("method", "sets"),
    [
        ("uncompressed", ()),
        ("true_topk", ()),
        ("fetchsgd", ("decode=unbiased",)),
        ("fetchsgd", ("hash=fixed",)),
    ],
)
def test_the_weights_are_the_same(method, sets):
    _, one = trained(*sets, "weight_decay_by=clients", method=method)
    run, other = trained(*sets, "weight_decay_by=server", method=method)
    assert run.setup.decay == 0.05
    assert run.setup.trainer.weight_decay == 0
    torch.testing.assert_close(one.weights, other.weights, rtol=1e-4, atol=1e-6)
    _, without = trained(*sets, "weight_decay=0.0", method=method)
    assert (without.weights - one.weights).abs().max() > 1e-3


def test_the_server_does_where_messages_are_rounded():
    few = ("upload.quantiser=step", "upload.tau=2")
    run, training = trained(*few, method="true_topk")
    assert run.setup.decay == 0.05
    plain, _ = trained(method="true_topk")
    assert plain.setup.decay == 0
    assert torch.isfinite(training.weights).all()


def test_messages_are_shorter():
    """Where gradients are small, decay is most of what clients would send."""
    few = ("upload.quantiser=step", "upload.tau=4", "weight_decay=1.0", "peak=1e-4")
    sizes = {}
    for who in ("clients", "server"):
        run = Run(
            resolve(
                {"task": {"name": "digits"}},
                [*few, f"weight_decay_by={who}", "epochs=1", "method.name=true_topk", "k=100"],
            )
        )
        start = run.start()
        training, merged = next(run.train(start))
        sizes[who] = float(merged.bytes_up)
        assert training.round == 1
    assert sizes["server"] < 0.8 * sizes["clients"]


@pytest.mark.parametrize("method", ["local_topk", "fedavg"])
def test_clients_do_where_messages_do_not_add_up_or_steps_are_their_own(method):
    run, _ = trained("bits=4", method=method)
    assert run.setup.decay == 0
    assert run.setup.trainer.weight_decay == 0.05
    with pytest.raises(UserError, match="needs clients that send one gradient each, in messages"):
        trained("weight_decay_by=server", method=method)
