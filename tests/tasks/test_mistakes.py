"""Mistakes in a task of one's own: each gets a sentence that says which part is wrong, and how."""

# ruff: noqa: ARG005

import sys
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from tinytask import tiny
from torch import nn
from torch.nn import functional

from fetchsgd.errors import UserError
from fetchsgd.runs.settings import resolve
from fetchsgd.simulation.run import Run
from fetchsgd.tasks import ClientData, EachExample, HeldOut, own_loss

TINY = tiny()
X, Y = TINY.train.inputs, TINY.train.targets


def run_with(method="uncompressed", **parts):
    config = resolve({"task": {"name": "tinytask:tiny"}, "method": {"name": method}})
    return Run(replace(config, task=replace(TINY, **parts)))


def off_by(column, value):
    changed = TINY.train.targets.clone()
    changed[column] = value
    return replace(TINY.train, targets=changed)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"loss": functional.cross_entropy},
            "the task's loss must give one number per example, got a single one for 2 examples; .*"
            "reduction='none'",
        ),
        ({"loss": lambda o, y: 0.5}, "the task's loss must return a tensor .* got a float for"),
        (
            {"loss": lambda o, y: (o - 1).square()},
            r"loss must give one number per example, got shape \(2, 3\) .*; take the mean over all",
        ),
        (
            {"loss": lambda o, y: (o[:, :1] - y).square()},
            r"loss must give one number per example, got shape \(2, 2\) .* broadcast to that",
        ),
        (
            {"quality": lambda o, y: (o.argmax(1) == y).float().mean()},
            "the task's quality must give one number per example, got a single one",
        ),
        (
            {"quality": lambda o, y: (o.argmax(1) == y).numpy()},
            "the task's quality must return a tensor of shape .* got a numpy.ndarray",
        ),
        (
            {"quality": lambda o, y: o.logits},
            r"quality of the task 'tiny' cannot take outputs of shape \(2, 3\) float32 and targets "
            r"of shape \(2,\) int64: .*no attribute 'logits'",
        ),
        (
            {"loss": lambda o, y: o @ y.float()},
            r"loss of the task 'tiny' cannot take outputs of shape \(2, 3\) float32 and targets of",
        ),
        (
            {"model": lambda: nn.Linear(7, 3)},
            r"model of the task 'tiny' cannot take inputs of shape \(2, 5\) float32: mat1 and mat2",
        ),
        ({"model": lambda: nn.Linear}, "model of the task 'tiny' must return a torch.nn.Module"),
        ({"model": nn.Linear(5, 3)}, "model of the task 'tiny' must be a function without arg"),
        ({"train": off_by(-1, 3)}, "clients hold the label 3, but the model .* has 3 outputs per"),
        ({"train": off_by(-1, -1)}, "hold the label -1, .* labels must be from 0 to 2"),
        (
            {"test_targets": TINY.test_targets + 1},
            "targets of the test set hold the label 3",
        ),
        (
            {"model": lambda: EachExample(nn.Linear(5, 3)), "loss": own_loss},
            r"must return its loss, one number, .* got one of shape \(1, 3\); were labels among",
        ),
    ],
)
def test_parts_that_do_not_fit_are_a_sentence(parts, message):
    with pytest.raises(UserError, match=message):
        run_with(**parts)


@pytest.mark.parametrize("method", ["uncompressed", "local_topk", "fedavg"])
def test_a_loss_that_goes_wrong_later_is_a_sentence_too(method, tmp_path):
    """It gives one number for each of two examples, and a single one for more."""

    def fickle(outputs, targets):
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        return losses if len(losses) == 2 else losses.mean()

    with pytest.raises(UserError, match="loss must give one number per example, got a single one"):
        run_with(method, loss=fickle).execute(tmp_path / method)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ClientData(X.numpy(), Y, TINY.train.offsets),
            "inputs of the task's clients must be a tensor, .* got a numpy.ndarray; torch.from_nu",
        ),
        (
            lambda: ClientData(X, Y.tolist(), TINY.train.offsets),
            r"targets of the task's clients must be a tensor.* got a int; torch.tensor\(...\)",
        ),
        (lambda: ClientData((), Y, TINY.train.offsets), "inputs of the task's clients are empty"),
        (
            lambda: ClientData(torch.tensor(1.0), Y, TINY.train.offsets),
            "inputs of the task's clients must have a row per example, got one number",
        ),
        (
            lambda: ClientData((X, X[1:]), Y, TINY.train.offsets),
            "inputs of the task's clients have .* rows; all their tensors must have a row per ex",
        ),
        (
            lambda: ClientData(X, Y[1:], TINY.train.offsets),
            r"clients have \d+ inputs and \d+ targets; there must be one of each per example",
        ),
        (
            lambda: ClientData(X, Y, TINY.train.offsets.tolist()),
            "offsets must be a numpy array of integers, .* got a list; ClientData.from_groups",
        ),
        (lambda: ClientData(X, Y, np.array([0, 3])), r"examples, but offsets are 0 ... 3; they"),
        (
            lambda: ClientData(X, Y, np.array([0, 4, 4, len(X)])),
            "client 1 of the task has no data; leave it out",
        ),
        (
            lambda: ClientData({"a": X}, Y, TINY.train.offsets, np.full(len(X), 5)),
            "lengths are for inputs that are one tensor",
        ),
        (
            lambda: ClientData.from_groups(X, Y, np.array(["ann"] * len(X))),
            "client_of must hold the number of each example's client, .*np.unique",
        ),
        (lambda: ClientData.from_groups(X, Y, [0, 1]), "client_of has 2 numbers for"),
        (
            lambda: ClientData.from_groups(X, Y, np.arange(len(X)) - 1),
            "client_of holds -1; clients are numbered from 0",
        ),
        (
            lambda: ClientData.from_groups(X, Y, 2 * np.arange(len(X))),
            "client 1 of the task has no data",
        ),
        (lambda: HeldOut(X, Y.numpy()), "targets of the test set must be a tensor"),
        (lambda: replace(TINY, train=(X, Y)), "train of the task 'tiny' must be a ClientData"),
        (lambda: replace(TINY, loss=None), "loss of the task 'tiny' must be a function"),
        (lambda: replace(TINY, quality=0.5), "quality of the task 'tiny' must be a function"),
    ],
)
def test_data_that_cannot_be_used_are_a_sentence(make, message):
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: TINY, r"must take the seed and its options as named arguments.*seed: int = 0"),
        (lambda seed=0: TINY.model, "task 'own:task' must return a fetchsgd.tasks.Task, got"),
        (lambda seed=0: None, "task 'own:task' must return a fetchsgd.tasks.Task, got None"),
    ],
)
def test_a_function_that_is_no_task_is_a_sentence(function, message, monkeypatch):
    module = types.ModuleType("own")
    module.task = function
    monkeypatch.setitem(sys.modules, "own", module)
    with pytest.raises(UserError, match=message):
        resolve({"task": {"name": "own:task"}})
