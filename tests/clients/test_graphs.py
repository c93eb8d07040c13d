"""Recorded passes of clients side by side: the same gradients as launched ones, drawn anew."""

from dataclasses import replace

import pytest
import torch
from fourclients import cohort_like, images
from torch import nn

from fetchsgd.clients.batches import Cohort
from fetchsgd.clients.graphs import SharedRows, tensors_of
from fetchsgd.clients.trainer import LocalWork, Trainer
from fetchsgd.tasks import cross_entropy
from fetchsgd.tasks.digits import network
from fetchsgd.vector import FlatModel


@pytest.mark.parametrize(
    "examples", [cohort_like(5), cohort_like(5).batch], ids=["cohort", "batch"]
)
def test_examples_are_made_of_their_tensors(examples):
    parts = tensors_of(examples)
    again = type(examples)(*parts)
    assert all(ours is given for ours, given in zip(tensors_of(again), parts, strict=True))
    assert again.inputs is examples.inputs
    assert again.targets is examples.targets


def test_shapes_share_rows():
    memory, weights = SharedRows(), torch.zeros(7)
    many = memory.first(5, weights)
    few = memory.first(3, weights)
    assert (many.shape, few.shape) == ((5, 7), (3, 7))
    assert few.data_ptr() == many.data_ptr()
    more = memory.first(6, weights)
    many.fill_(1.0)
    more.fill_(2.0)
    assert (many == 1).all()


# --- on a GPU


def drawing():
    return nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3))


MODELS = {"digits": (network, lambda: images(1)), "drawing": (drawing, lambda: cohort_like(5))}
DTYPES = [torch.float32, torch.bfloat16]


class BothWays:
    """The same trainer with and without graphs."""

    def __init__(self, name, dtype=torch.float32, clip=0.0):
        torch.manual_seed(0)
        make, cohort = MODELS[name]
        model = FlatModel(make().cuda())
        self.weights, self.work = model.weights(), LocalWork(clip=clip)
        self.cohort = Cohort(*(part.cuda() for part in tensors_of(cohort())))
        self.launched = Trainer(model, cross_entropy, 0.1, dtype)
        self.recorded = replace(self.launched, graphs=True)

    def vectors(self, trainer, cohort=None, seed=0, weights=None):
        generator = torch.Generator("cuda")
        weights = self.weights if weights is None else weights
        return trainer.client_vectors(
            weights, cohort or self.cohort, self.work, 0.1, generator, seed
        )

    def assert_same(self, **given):
        expected, expected_losses = self.vectors(self.launched, **given)
        found, losses = self.vectors(self.recorded, **given)
        assert expected.norm(dim=1).min() > 0
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(losses, expected_losses, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("clip", [0.0, 0.01])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_recorded_equals_launched(name, dtype, clip):
    """In all shapes, with new weights and new examples, and whatever was recorded before."""
    both = BothWays(name, dtype, clip)
    both.assert_same()
    both.assert_same(weights=1.5 * both.weights)
    both.assert_same(cohort=both.cohort.part(slice(2)))
    inputs = both.cohort.inputs.flip(0).contiguous()
    both.assert_same(cohort=replace(both.cohort, inputs=inputs), seed=3)
    assert len(both.recorded._recorded_side_by_side.recorded) == 2


@pytest.mark.gpu
def test_replays_draw_anew_and_by_the_seed():
    both = BothWays("drawing")
    first, _ = both.vectors(both.recorded, seed=1)
    first = first.clone()
    other, _ = both.vectors(both.recorded, seed=2)
    assert not torch.equal(first, other)
    again, _ = both.vectors(both.recorded, seed=1)
    torch.testing.assert_close(again, first)


@pytest.mark.gpu
def test_the_next_call_overwrites_gradients_but_not_losses():
    both = BothWays("digits")
    first, losses = both.vectors(both.recorded)
    kept = losses.clone()
    second, _ = both.vectors(both.recorded, weights=2 * both.weights)
    assert first.data_ptr() == second.data_ptr()
    assert torch.equal(losses, kept)


@pytest.mark.gpu
def test_a_step_on_own_data_is_recorded_as_well():
    both = BothWays("digits")
    both.work = LocalWork(epochs=2)
    both.assert_same()
    assert both.recorded._recorded_side_by_side.recorded
