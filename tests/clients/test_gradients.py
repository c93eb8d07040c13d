"""What one pass suits and what is left to vmap."""

import pytest
import torch
from fourclients import OnPositions, both_ways, cohort_like, gradients_of, images, last, words
from tinytask import tiny
from torch import nn
from torch.nn import functional

from fetchsgd.clients import trainer as trainers
from fetchsgd.clients.trainer import LocalWork, Trainer
from fetchsgd.tasks import cross_entropy
from fetchsgd.vector import FlatModel


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def test_a_layer_that_is_not_reached_has_no_gradient():
    """Its part of the result starts as uninitialised memory."""

    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.idle, self.used, self.dropped = (nn.Linear(5, 3) for _ in range(3))

        def forward(self, x):
            self.dropped(x)
            return self.used(x)

    gradients = gradients_of(Idle())
    assert gradients.layers
    found, _ = gradients.in_one_pass(gradients.model.weights(), cohort_like(5))
    assert not found[:, :18].any()
    assert not found[:, 36:].any()
    assert found[:, 18:36].any()


# --- models that one pass does not suit


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.layer(self.layer(x).tanh()))


class Borrowed(Twice):
    """A layer's weights used without calling the layer."""

    def forward(self, x):
        return self.last(functional.linear(self.layer(x).tanh(), self.layer.weight))


class Turned(OnPositions):
    """Positions before examples."""

    def forward(self, words):
        return self.each(self.norm(self.words(words.T))).mean(dim=0)


class Mixed(Twice):
    """Each example sees the mean of the others."""

    def forward(self, x):
        x = self.layer(x)
        return self.last(x - x.mean(dim=0))


class Overwritten(Twice):
    """What a layer saw is gone when its gradient is due; autograd and vmap refuse this too."""

    def forward(self, x):
        x = self.layer(x) * 1.0
        y = self.last(x)
        x.zero_()
        return y


class Heir(nn.Linear):
    """It might do anything."""


class ByName(Twice):
    """The input is not the first argument by position."""

    def forward(self, x):
        return self.last(input=self.layer(x))


class Free(Twice):
    """Weights outside of any layer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x):
        return self.last(self.layer(x) * self.scale)


def tied():
    module = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), last(5))
    module[2].weight = module[0].weight
    return module


def normed():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), last(4))


UNSUITED = {
    "called twice": (Twice, lambda: cohort_like(5)),
    "borrowed": (Borrowed, lambda: cohort_like(5)),
    "turned": (Turned, words),
    "by name": (ByName, lambda: cohort_like(5)),
    "free": (Free, lambda: cohort_like(5)),
    "tied": (tied, lambda: cohort_like(5)),
    "weight norm": (normed, lambda: cohort_like(5)),
    "heir": (lambda: Heir(5, 3), lambda: cohort_like(5)),
    "grouped": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), last(144)), images),
    "circular": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), last(256)),
        images,
    ),
    "padding by name": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding="same"), last(256)),
        images,
    ),
    "three dimensions": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 2)), nn.Conv3d(1, 2, 1), last(256)),
        images,
    ),
    "mixed": (Mixed, lambda: cohort_like(5)),
}


@pytest.mark.parametrize("name", UNSUITED)
def test_falls_back_to_vmap(name):
    make, cohort = UNSUITED[name]
    in_one_pass, found, expected = both_ways(make(), cohort())
    assert in_one_pass is False
    assert torch.equal(found, expected)


def test_an_input_that_is_overwritten_is_noticed():
    gradients = gradients_of(Overwritten())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients.in_one_pass(gradients.model.weights(), cohort_like(5))


def test_zeros_at_the_start_hide_nothing():
    """Behind a last layer of zeros all gradients are zeros, also those of a layer used twice."""
    module = Twice()
    nn.init.zeros_(module.last.weight)
    assert both_ways(module, cohort_like(5))[0] is False


# --- in the hands of a trainer


@pytest.mark.parametrize("work", [LocalWork(), LocalWork(epochs=2, batch_size=2)], ids=str)
def test_trainer(work, monkeypatch):
    """The same vectors in one pass, in the first local step too, by vmap, and one by one."""
    trainer = Trainer(FlatModel(tiny().model()), cross_entropy, weight_decay=0.1)
    weights, cohort = trainer.model.weights(), cohort_like(5)

    def vectors():
        generator = torch.Generator().manual_seed(3)
        return trainer.client_vectors(weights, cohort, work, 0.1, generator, 0)

    found = vectors()
    assert trainer._side_by_side.one_pass_serves
    monkeypatch.setattr(trainer._side_by_side, "one_pass_serves", False)
    torch.testing.assert_close(found, vectors(), rtol=1e-4, atol=1e-6)
    monkeypatch.setattr(trainers, "LARGE_CLIENT", 0)
    monkeypatch.setitem(trainer.__dict__, "_side_by_side", None)
    torch.testing.assert_close(found, vectors(), rtol=1e-4, atol=1e-6)


def test_one_client_alone_decides_nothing():
    gradients = gradients_of(tiny().model())
    gradients(gradients.model.weights(), cohort_like(5).part(slice(1)))
    assert gradients.one_pass_serves is None


def test_rounded_weights_give_nearly_the_same_gradient():
    model, batch = FlatModel(tiny().model()), cohort_like(5).batch
    weights = model.weights()
    (exact, loss), (rounded, near) = (
        Trainer(model, cross_entropy, 0.1, dtype, rounded=dtype == torch.bfloat16).mean_gradient(
            weights, batch, 0
        )
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert {piece.dtype for piece in rounded} == {torch.float32}
    torch.testing.assert_close(loss, near, rtol=0.02, atol=0)
    one, other = (torch.cat([piece.flatten() for piece in pieces]) for pieces in (exact, rounded))
    assert not torch.equal(one, other)
    assert (one - other).norm() < 0.02 * one.norm()
