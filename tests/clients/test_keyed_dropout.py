"""Dropout by keys: the same in a batch, client by client, under vmap and on a real client."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fourclients import cohort_like, images, last, words
from randommodels import Layered
from randommodels import task as random_task
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fetchsgd.clients.dropout import NATIVE, example_keys, keep, keyed_dropout
from fetchsgd.clients.gathering import DropoutSeed, Gatherer
from fetchsgd.clients.trainer import LocalWork, Trainer
from fetchsgd.flower.work import compute
from fetchsgd.runs.settings import resolve
from fetchsgd.runs.setup import Setup
from fetchsgd.tasks import cross_entropy
from fetchsgd.trees import tree_map
from fetchsgd.vector import FlatModel

KEYS = torch.from_numpy(
    example_keys(17, np.repeat([[5], [1], [8], [2]], 3, 1), np.arange(12).reshape(4, 3) % 3)
)


class Attends(nn.Module):
    """Dropout as a function, on heads that stand beside the examples."""

    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(11, 6), nn.Linear(6, 3)

    def forward(self, x):
        states = self.words(x).unflatten(2, (2, 3)).transpose(1, 2).flatten(0, 1)
        shares = functional.dropout((states @ states.mT).softmax(-1), 0.4, self.training)
        return self.last((shares @ states).unflatten(0, (-1, 2)).transpose(1, 2).flatten(2).mean(1))


MODELS = {
    "layers": (Layered, lambda: cohort_like(5)),
    "heads": (Attends, words),
    "channels": (
        lambda: nn.Sequential(nn.Conv2d(2, 6, 3), nn.Dropout2d(0.4), nn.ReLU(), last(216)),
        lambda: images(2, 8),
    ),
}


def trainer_of(make):
    torch.manual_seed(0)
    return Trainer(FlatModel(make()), cross_entropy)


def vectors_of(trainer, cohort, work=LocalWork(), seed=0):  # noqa: B008
    weights = trainer.model.weights()
    return trainer.client_vectors(weights, cohort, work, 0.1, torch.Generator(), seed)[0]


@pytest.mark.parametrize("name", MODELS)
def test_every_way_drops_the_same(name):
    make, cohort = MODELS[name]
    cohort, trainer = replace(cohort(), keys=KEYS), trainer_of(make)
    expected = torch.cat([vectors_of(trainer, cohort.part(slice(i, i + 1))) for i in range(4)])
    same = {"rtol": 1e-4, "atol": 1e-6}
    for serves in ((True, True), (True, False), (False, False)):
        side = trainer._side_by_side
        side.vmap_serves, side.one_pass_serves = serves[0], serves[1] and bool(side.layers)
        torch.testing.assert_close(vectors_of(trainer, cohort, seed=9), expected, **same)
    pieces, _ = trainer.mean_gradient(trainer.model.weights(), cohort.batch, 5)
    mean = torch.cat([piece.flatten() for piece in pieces])
    torch.testing.assert_close(mean, cohort.weights @ expected, **same)
    assert not torch.allclose(vectors_of(trainer, cohort.later(1)), expected, rtol=1e-2)
    assert functional.dropout is NATIVE["dropout"]  # torch is as it was


@pytest.mark.parametrize("work", [LocalWork(), LocalWork(epochs=3)], ids=str)
def test_a_real_client_drops_what_a_simulated_one_does(work):
    name = {"name": "randommodels:task", "model": "layered"}
    method = "fedavg" if work.epochs else "uncompressed"
    given = {"task": name, "method": {"name": method}, "local": {"epochs": work.epochs}}
    setup = Setup(resolve(given))
    data = Gatherer(random_task().train, "uniform", 3, draws=DropoutSeed(0))
    clients, round = np.array([7, 2, 9]), 4
    weights = setup.origin
    simulated, _ = setup.trainer.client_vectors(
        weights, data.gather(clients, round), work, 0.1, torch.Generator(), 1
    )
    for client, expected in zip(clients.tolist(), simulated, strict=True):
        found = compute(setup, weights, client, round, 0.1).vector
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    other = compute(setup, weights, 7, round + 1, 0.1).vector
    assert not torch.allclose(other, simulated[0], rtol=1e-2)


def test_local_steps_drop_other_numbers():
    """Twice the same step would be two equal differences of a linear loss."""
    trainer = Trainer(FlatModel(nn.Sequential(nn.Linear(5, 1), nn.Dropout())), lambda o, _: o[:, 0])
    cohort = replace(cohort_like(5), keys=KEYS)
    once, twice = (vectors_of(trainer, cohort, LocalWork(epochs=n)) for n in (1, 2))
    assert not torch.allclose(twice, 2 * once)


def test_numbers_are_dropped_as_often_as_said_and_independently():
    """Normal bounds at five standard deviations: a correct hash fails once in a million."""
    n, per = 64, 4096
    keys = torch.from_numpy(example_keys(3, np.zeros(n, np.int64), np.arange(n)))
    first = keep(keys, 1, torch.Size([n, per]), 0.3).double() - 0.7
    bound = 5 / (n * per) ** 0.5
    for other in (
        keep(keys, 2, torch.Size([n, per]), 0.3).double() - 0.7,  # the next call
        keep(keys + 1, 1, torch.Size([n, per]), 0.3).double() - 0.7,  # the next key
        first.roll(1, 1), first.roll(1, 0), first.roll(64, 1), first.roll(2, 0),
    ):  # fmt: skip
        assert abs(first.mean()) < bound * 0.21**0.5
        assert abs((first * other).mean()) < bound * 0.21
    rates = first.mean(dim=1)
    assert rates.abs().max() < 5 * (0.21 / per) ** 0.5


def test_what_is_not_by_example_is_drawn_as_ever():
    keys = KEYS.flatten()
    given = torch.ones(7, 5)
    with keyed_dropout(keys):
        torch.manual_seed(3)
        found = functional.dropout(given, 0.5)
        assert torch.equal(functional.dropout(given, 0.5, training=False), given)
        assert not functional.dropout(torch.ones(12, 5), 1.0).any()
    torch.manual_seed(3)
    assert torch.equal(found, functional.dropout(given, 0.5))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = Layered(), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(checkpoint(self.first, x, use_reentrant=False))


def test_checkpoints_drop_the_same_on_the_way_back():
    trainer = trainer_of(Checkpointed)
    batch = replace(cohort_like(5), keys=KEYS).alone(0)
    pieces, _ = trainer.mean_gradient(trainer.model.weights(), batch, 11)
    module = trainer.model.module
    torch.manual_seed(11)
    loss = cross_entropy(module(batch.inputs), batch.targets) @ batch.shares
    for found, expected in zip(pieces, torch.autograd.grad(loss, module.parameters()), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.gpu
def test_a_gpu_and_recorded_passes_drop_the_same():
    shape = torch.Size([12, 300])
    on_cpu = keep(KEYS.flatten(), 1, shape, 0.3)
    assert torch.equal(keep(KEYS.flatten().cuda(), 1, shape, 0.3).cpu(), on_cpu)
    torch.manual_seed(0)
    model = FlatModel(Layered().cuda())
    plain, recorded = (Trainer(model, cross_entropy, graphs=graphs) for graphs in (False, True))
    for step in range(3):  # a replay must read the keys that it is given
        cohort = tree_map(torch.Tensor.cuda, replace(cohort_like(5), keys=KEYS).later(step))
        expected, _ = plain.mean_gradient(model.weights(), cohort.batch, 0)
        found, _ = recorded.mean_gradient(model.weights(), cohort.batch, 0)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
