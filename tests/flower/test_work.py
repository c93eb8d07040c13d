"""A real client's work: what its model draws, and what it must have in common with the server."""

import pytest
import torch
from torch import nn

from fetchsgd.exchange.agreement import as_bytes, digest
from fetchsgd.flower.work import work
from fetchsgd.runs.settings import resolve
from fetchsgd.runs.setup import Setup
from fetchsgd.wire import encode


def setup_of(model, method="uncompressed", *sets):
    given = {"task": {"name": "randommodels:task", "model": model}, "method": {"name": method}}
    return Setup(resolve(given, sets))


@pytest.mark.parametrize("model", ["layered", "functional", "skipping"])
@pytest.mark.parametrize(
    ("method", "sets"),
    [("uncompressed", ()), ("local_topk", ()), ("fedavg", ("epochs=2", "batch_size=2"))],
    ids=str,
)
def test_draws_follow_from_run_round_and_client(method, sets, model):
    """A task with one client gives its data to whoever asks, so only the draws can differ."""
    alone = ("task.clients=1", "clients_per_round=1", *(f"local.{text}" for text in sets))

    def sent(client, round):
        setup = setup_of(model, method, *alone)
        weights = torch.randn(setup.model.dim, generator=torch.Generator().manual_seed(0))
        before = torch.get_rng_state()
        done = work(setup, weights, client, round, 0.1, None)
        assert torch.equal(torch.get_rng_state(), before)
        return done.loss, encode(done.payload)

    torch.manual_seed(0)
    first = sent(5, 3)
    torch.manual_seed(1)
    assert sent(5, 3) == first
    assert sent(5, 4)[0] != first[0]
    assert sent(6, 3)[0] != first[0]


def test_frozen_weights_and_buffers_are_part_of_what_must_agree():
    def digest_of(change):
        setup = setup_of("layered")
        change(setup.model.module)
        return digest(setup)

    def frozen(value):
        def change(module):
            module.frozen = nn.Parameter(torch.tensor(value), requires_grad=False)

        return change

    def buffered(value, persistent=True):
        def change(module):
            module.register_buffer("table", torch.tensor(value), persistent=persistent)

        return change

    def nothing(module):
        pass

    plain = digest_of(nothing)
    assert digest_of(frozen(1.0)) != digest_of(frozen(2.0))
    assert digest_of(frozen(1.0)) == digest_of(frozen(1.0)) != plain
    assert digest_of(buffered([1, 2])) != digest_of(buffered([1, 3]))
    # What is computed anew by each program need not be the same to the bit.
    assert digest_of(buffered(1.0, persistent=False)) == plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_the_bits_of_any_tensor(dtype):
    tensor = torch.tensor([[0.0, 1.5], [2.0, -1.0]]).to(dtype)
    assert as_bytes(tensor.T) == as_bytes(tensor.T.contiguous())
    assert len(as_bytes(tensor)) == 4 * tensor.element_size()
    assert len(as_bytes(tensor[0, 0])) == tensor.element_size()
