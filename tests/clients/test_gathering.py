"""Examples of unequal clients as one batch and client by client."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tinytask import tiny

from fetchsgd.clients.gathering import Gatherer
from fetchsgd.clients.trainer import Trainer
from fetchsgd.vector import FlatModel

CLIENTS = np.array([7, 2, 9, 4, 0])


@pytest.fixture
def task():
    return tiny()


def moved(inputs, generator):
    return inputs + torch.rand(inputs.shape, generator=generator)


@pytest.mark.parametrize("averaging", ["uniform", "examples"])
def test_a_batch_holds_what_its_clients_hold(task, averaging):
    gatherer = Gatherer(task.train, averaging, seed=0)
    batch, cohort = gatherer.gather_batch(CLIENTS, 0), gatherer.gather(CLIENTS, 0)
    there = cohort.present.flatten()
    assert torch.equal(batch.inputs, cohort.batch.inputs[there])
    assert torch.equal(batch.targets, cohort.batch.targets[there])
    torch.testing.assert_close(batch.shares, cohort.batch.shares[there])
    sizes = torch.from_numpy(task.train.sizes[CLIENTS]).float()
    assert torch.equal(cohort.present.sum(dim=1).float(), sizes)
    expected = sizes / sizes.sum() if averaging == "examples" else torch.full((5,), 0.2)
    torch.testing.assert_close(cohort.weights, expected)


def test_padding_to_few_shapes_changes_no_gradient(task, monkeypatch):
    """What CUDA graphs need: the same batch with and without examples that only fill it up."""
    torch.manual_seed(0)
    trainer = Trainer(FlatModel(task.model()), task.loss)
    weights = trainer.model.weights()
    gatherer = Gatherer(task.train, "uniform", seed=0)
    plain, cohort = gatherer.gather_batch(CLIENTS, 0), gatherer.gather(CLIENTS, 0)
    # Sizes below 16 are not rounded up; this adds to every size.
    monkeypatch.setattr("fetchsgd.clients.gathering.rounded_up", lambda count: count + 3)
    padding = replace(gatherer, few_shapes=True)
    filled, padded = padding.gather_batch(CLIENTS, 0), padding.gather(CLIENTS, 0)
    assert len(filled.inputs) == len(plain.inputs) + 3
    assert padded.present.shape[1] == cohort.present.shape[1] + 3
    expected, loss = trainer.mean_gradient(weights, plain, 0)
    for batch in (filled, cohort.batch, padded.batch):
        found, same_loss = trainer.mean_gradient(weights, batch, 0)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(same_loss, loss)


def test_clients_of_one_size_are_not_padded(task, monkeypatch):
    monkeypatch.setattr("fetchsgd.clients.gathering.rounded_up", lambda count: count + 3)
    equal = replace(task.train, offsets=np.arange(0, len(task.train.inputs) + 1))
    gatherer = Gatherer(equal, "uniform", seed=0, few_shapes=True)
    assert gatherer.gather(CLIENTS, 0).present.shape == (5, 1)
    assert len(gatherer.gather_batch(CLIENTS, 0).inputs) == 5


def test_augmentation_follows_from_seed_and_round(task):
    gatherer = Gatherer(task.train, "uniform", seed=0, augment=moved)
    for gather in ("gather", "gather_batch"):
        first, again, next_round = (getattr(gatherer, gather)(CLIENTS, i).inputs for i in (3, 3, 4))
        other_seed = getattr(replace(gatherer, seed=1), gather)(CLIENTS, 3).inputs
        assert torch.equal(first, again)
        assert not torch.equal(first, next_round)
        assert not torch.equal(first, other_seed)
