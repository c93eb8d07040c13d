"""Buffers go along with a model; one that changes while it trains is noticed."""

import pytest
import torch
from fourclients import cohort_like, gradients_on_every_path
from torch import nn

from fetchsgd.clients.batches import Batch
from fetchsgd.clients.graphs import tensors_of
from fetchsgd.clients.trainer import LocalWork, Trainer
from fetchsgd.errors import UserError
from fetchsgd.tasks import cross_entropy
from fetchsgd.vector import FlatModel


class Positions(nn.Module):
    """Constant encodings of positions are added to the input."""

    def __init__(self, persistent=True):
        super().__init__()
        self.register_buffer("encodings", torch.arange(5.0).sin(), persistent=persistent)
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        return self.last(x + self.encodings)


@pytest.mark.parametrize("persistent", [True, False])
def test_constant_buffers_go_along(persistent):
    torch.manual_seed(0)
    module = Positions(persistent)
    model, paths = gradients_on_every_path(module)
    assert model.dim == 18
    assert list(model.constants()) == (["encodings"] if persistent else [])
    mean = paths.pop("one batch")[0]
    for path, found in paths.items():
        torch.testing.assert_close(found.mean(dim=0), mean, rtol=1e-4, atol=1e-6, msg=path)
    assert torch.equal(module.encodings, torch.arange(5.0).sin())


@pytest.mark.gpu
def test_constant_buffers_go_to_the_device():
    model = FlatModel(Positions().to("cuda"))
    cohort = cohort_like(5)
    batch = Batch(*(part.cuda() for part in tensors_of(cohort.batch)))
    found, _ = Trainer(model, cross_entropy).mean_gradient(model.weights(), batch, 0)
    model.module.cpu()
    expected, _ = Trainer(model, cross_entropy).mean_gradient(model.weights(), cohort.batch, 0)
    flat = torch.cat([piece.flatten() for piece in expected])
    torch.testing.assert_close(found[0].cpu(), flat, rtol=1e-2, atol=1e-3)


class Counting(Positions):
    def forward(self, x):
        self.encodings += 1
        return super().forward(x)


class Replacing(Positions):
    def forward(self, x):
        self.encodings = self.encodings * 0.9 + 0.1
        return super().forward(x)


class Averaging(Positions):
    """A running mean of the inputs, as batch norm keeps one."""

    def forward(self, x):
        with torch.no_grad():
            self.encodings.mul_(0.9).add_(0.1 * x.mean(dim=0))
        return super().forward(x)


class AveragingAnew(Positions):
    """The same in new memory."""

    def forward(self, x):
        self.encodings = 0.9 * self.encodings + 0.1 * x.mean(dim=0)
        return super().forward(x)


class Caching(Positions):
    """It computes the same buffer anew."""

    def forward(self, x):
        self.encodings = torch.arange(5.0).sin()
        return super().forward(x)


@pytest.mark.parametrize("make", [Counting, Replacing, Averaging, AveragingAnew])
def test_a_buffer_that_changes_in_training_is_named(make):
    weights, cohort = FlatModel(make()).weights(), cohort_like(5)
    sentence = "the model changes 'encodings' while it trains"
    with pytest.raises(UserError, match=sentence):
        Trainer(FlatModel(make()), cross_entropy).mean_gradient(weights, cohort.batch, 0)
    with pytest.raises(UserError, match=sentence):
        Trainer(FlatModel(make()), cross_entropy).client_vectors(
            weights, cohort, LocalWork(), 0.1, torch.Generator(), 0
        )


@pytest.mark.parametrize("make", [Caching, lambda: Counting(persistent=False)])
def test_a_cache_may_be_written(make):
    weights, cohort = FlatModel(make()).weights(), cohort_like(5)
    Trainer(FlatModel(make()), cross_entropy).mean_gradient(weights, cohort.batch, 0)
    Trainer(FlatModel(make()), cross_entropy).client_vectors(
        weights, cohort, LocalWork(), 0.1, torch.Generator(), 0
    )


def test_an_error_of_the_models_own_is_passed_on():
    class Failing(Positions):
        def forward(self, x):
            return self.last(x[:, :4])

    trainer = Trainer(FlatModel(Failing()), cross_entropy)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        trainer.mean_gradient(trainer.model.weights(), cohort_like(5).batch, 0)


def test_a_frozen_parameter_that_is_written_is_named():
    class Writing(Positions):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(5), requires_grad=False)

        def forward(self, x):
            self.scale.mul_(0.9)
            return super().forward(self.scale * x)

    trainer = Trainer(FlatModel(Writing()), cross_entropy)
    with pytest.raises(UserError, match="the model changes 'scale' while it trains"):
        trainer.mean_gradient(trainer.model.weights(), cohort_like(5).batch, 0)
