"""Nesterov's momentum on the server is that of torch.optim."""

import pytest
import torch

from fetchsgd.methods import FedAvg, FetchSGD, LocalTopK, SparseLoCo, TrueTopK, Uncompressed

DIM, CPU = 50, torch.device("cpu")
MOMENTUM = {"momentum": 0.9, "nesterov": True}
ALL = {"k": DIM, "mask_momentum": False}


def dense(sent):
    return sent.update if isinstance(sent.update, torch.Tensor) else sent.update.to_dense()


@pytest.mark.parametrize(
    "method",
    [
        Uncompressed(DIM, **MOMENTUM),
        FedAvg(DIM, **MOMENTUM),
        LocalTopK(DIM, DIM, **MOMENTUM),
        SparseLoCo(DIM, **MOMENTUM),
        TrueTopK(DIM, **ALL, **MOMENTUM),
    ],
    ids=lambda method: type(method).__name__,
)
def test_equals_torch(method):
    generator = torch.Generator().manual_seed(0)
    weights, state = torch.zeros(DIM), method.init(CPU)
    expected = torch.zeros(DIM, requires_grad=True)
    optimiser = torch.optim.SGD([expected], lr=0.7, momentum=0.9, nesterov=True)
    for round in range(5):
        mean = torch.randn(DIM, generator=generator)
        sent, state = method.step(mean, state, 0.7, round=round)
        weights = weights - dense(sent)
        expected.grad = mean
        optimiser.step()
    torch.testing.assert_close(weights, expected.detach())


def test_a_sketch_that_loses_nothing_steps_as_true_top_k():
    """Three rows, each far wider than the model: the median of the estimates is exact."""
    true = TrueTopK(DIM, **ALL, **MOMENTUM)
    method = FetchSGD(DIM, cols=40 * DIM, rows=3, block=1, **ALL, **MOMENTUM, noise_limit=1e6)
    states, generator = [method.init(CPU), true.init(CPU)], torch.Generator().manual_seed(1)
    for round in range(4):
        mean = torch.randn(DIM, generator=generator)
        sent, states[0] = method.step(
            method.message.compress(mean, round), states[0], 0.7, round=round
        )
        expected, states[1] = true.step(mean, states[1], 0.7, round=round)
        torch.testing.assert_close(dense(sent), dense(expected), rtol=1e-4, atol=1e-5)
