"""For models of every kind: clients at once == client by client == plain autograd."""

import copy
import re
from dataclasses import replace

import pytest
import torch
from fourclients import words
from zoo import ZOO, Animal

from fetchsgd.clients.probe import batching_note
from fetchsgd.clients.trainer import LocalWork, Trainer
from fetchsgd.tasks import cross_entropy
from fetchsgd.trees import at, call
from fetchsgd.vector import FlatModel


def made(animal):
    torch.manual_seed(0)
    return animal.make()


def own_gradient(module, animal, cohort, client):
    """By nothing but the module and autograd."""
    size = int(cohort.present[client].sum())
    inputs, targets = at((cohort.inputs, cohort.targets), (client, slice(size)))
    trained = [p for p in module.parameters() if p.requires_grad]
    losses = animal.loss(call(module, inputs), targets)
    assert losses.shape == (size,)
    return torch.cat([g.flatten() for g in torch.autograd.grad(losses.mean(), trained)])


def stepped(module, animal, cohort, client, rate, steps):
    """A client's own SGD, in the module itself."""
    module = copy.deepcopy(module)
    trained = [p for p in module.parameters() if p.requires_grad]
    before = torch.cat([p.detach().flatten() for p in trained])
    for _ in range(steps):
        parts = own_gradient(module, animal, cohort, client).split([p.numel() for p in trained])
        with torch.no_grad():
            for parameter, part in zip(trained, parts, strict=True):
                parameter -= rate * part.view(parameter.shape)
    return before - torch.cat([p.detach().flatten() for p in trained])


def vectors_of(trainer, cohort, work=LocalWork(), rate=0.1):  # noqa: B008
    weights, generator = trainer.model.weights(), torch.Generator()
    return trainer.client_vectors(weights, cohort, work, rate, generator, 0)[0]


@pytest.mark.parametrize("name", ZOO)
def test_gradients_are_the_same_on_every_path(name):
    animal = ZOO[name]
    module, cohort = made(animal), animal.cohort()
    expected = torch.stack([own_gradient(module, animal, cohort, i) for i in range(4)])
    assert (expected.norm(dim=1) > 0.01).all()
    trainer = Trainer(FlatModel(module), animal.loss)
    same = {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(vectors_of(trainer, cohort), expected, **same)
    assert trainer._side_by_side.vmap_serves is animal.batched
    one_by_one = Trainer(FlatModel(module), animal.loss)
    one_by_one._side_by_side.vmap_serves = False
    torch.testing.assert_close(vectors_of(one_by_one, cohort), expected, **same)
    pieces, _ = trainer.mean_gradient(trainer.model.weights(), cohort.batch, 0)
    mean = torch.cat([piece.flatten() for piece in pieces])
    torch.testing.assert_close(mean, cohort.weights @ expected, **same)


@pytest.mark.parametrize("name", ZOO)
def test_local_steps_are_a_clients_own_sgd(name):
    animal = ZOO[name]
    module, cohort = made(animal), animal.cohort()
    expected = torch.stack([stepped(module, animal, cohort, i, 0.1, 3) for i in range(4)])
    found = vectors_of(Trainer(FlatModel(module), animal.loss), cohort, LocalWork(epochs=3))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gru", "since torch cannot run torch.nn.GRU for many at once"),
        ("lstm", "since torch cannot run torch.nn.LSTM for many at once"),
        ("decides", "since torch cannot run the model for many at once: its path depends on its"),
    ],
)
def test_what_cannot_be_batched_is_said_with_what_it_costs(name, why):
    animal = ZOO[name]
    trainer = Trainer(FlatModel(made(animal)), animal.loss)
    note = batching_note(trainer, trainer.model.weights(), animal.cohort())
    assert note is not None
    assert re.search(why + r".*; for 4 of them that takes .* ms, .* times as long", note)


def test_a_model_of_hugging_face():
    """Inputs by name, padding that is masked, and a ModelOutput out."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, num_labels=3, max_position_embeddings=8,
    )  # fmt: skip
    torch.manual_seed(0)
    module = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    given = words()
    mask = torch.ones_like(given.inputs)
    mask[::2, :, 3:] = 0
    cohort = replace(given, inputs={"input_ids": given.inputs, "attention_mask": mask})
    animal = Animal(lambda: module, lambda: cohort, lambda o, y: cross_entropy(o.logits, y))
    expected = torch.stack([own_gradient(module, animal, cohort, i) for i in range(4)])
    trainer = Trainer(FlatModel(module), animal.loss)
    torch.testing.assert_close(vectors_of(trainer, cohort), expected, rtol=1e-3, atol=1e-6)
    pieces, _ = trainer.mean_gradient(trainer.model.weights(), cohort.batch, 0)
    mean = torch.cat([piece.flatten() for piece in pieces])
    torch.testing.assert_close(mean, cohort.weights @ expected, rtol=1e-3, atol=1e-6)


def test_what_can_be_batched_needs_no_note():
    animal = ZOO["tied"]
    trainer = Trainer(FlatModel(made(animal)), animal.loss)
    assert batching_note(trainer, trainer.model.weights(), animal.cohort()) is None
