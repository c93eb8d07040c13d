"""Evaluation is a function of the weights, whatever the model draws in training."""

from dataclasses import replace

import pytest
import torch
from randommodels import MODELS, task

from fetchsgd.clients.evaluate import evaluate
from fetchsgd.clients.trainer import Trainer
from fetchsgd.vector import FlatModel


def trained(name):
    found = task(name)
    torch.manual_seed(0)
    trainer = Trainer(FlatModel(found.model()), found.loss)
    return found, trainer, trainer.model.weights()


@pytest.mark.parametrize("name", MODELS)
def test_equal_weights_give_equal_numbers_and_nothing_else_changes(name):
    found, trainer, weights = trained(name)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, second = (
        evaluate(trainer, found, found.test_inputs, found.test_targets, weights) for _ in range(2)
    )
    assert first == second
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_is_off():
    found, trainer, weights = trained("layered")
    accuracy, loss = evaluate(trainer, found, found.test_inputs, found.test_targets, weights)
    module = found.model().eval()
    torch.nn.utils.vector_to_parameters(weights, module.parameters())
    with torch.no_grad():
        outputs = module(found.test_inputs)
    assert loss == pytest.approx(float(found.loss(outputs, found.test_targets).mean()))
    assert accuracy == pytest.approx(float(found.quality(outputs, found.test_targets).mean()))


def test_each_part_keeps_its_mode():
    found, trainer, weights = trained("layered")
    trainer.model.module[1].eval()
    evaluate(trainer, found, found.test_inputs, found.test_targets, weights)
    assert [part.training for part in trainer.model.module.modules()] == [
        True, True, False, True, True, True, True
    ]  # fmt: skip


def test_each_part_keeps_its_mode_after_an_error():
    found, trainer, weights = trained("layered")

    def fails(*_):
        raise KeyError

    with pytest.raises(KeyError):
        evaluate(
            trainer, replace(found, quality=fails), found.test_inputs, found.test_targets, weights
        )
    assert all(part.training for part in trainer.model.module.modules())


def test_batches_change_nothing():
    found, trainer, weights = trained("functional")
    whole, in_parts = (
        evaluate(
            trainer, replace(found, eval_batch=size), found.test_inputs, found.test_targets, weights
        )
        for size in (2000, 3)
    )
    assert whole == pytest.approx(in_parts)
