"""A test set that is read when it is asked for: by whoever evaluates, and once."""

from dataclasses import replace

import lazytask
import pytest
import torch
from tinytask import tiny

from fetchsgd.errors import UserError
from fetchsgd.runs.settings import resolve
from fetchsgd.runs.setup import Setup
from fetchsgd.simulation import Run
from fetchsgd.simulation.sweep import plan
from fetchsgd.tasks import HeldOut

GIVEN = {"task": {"name": "lazytask:lazy"}}
UNREADABLE = {"task": {"name": "lazytask:lazy", "readable": False}}
SENTENCE = "there is no file test.bin here"


@pytest.fixture(autouse=True)
def nothing_read_yet():
    lazytask.READS.clear()


def test_it_is_read_once_and_not_before_it_is_needed():
    setup = Setup(resolve(GIVEN))
    setup.start()
    assert lazytask.READS == []
    inputs, targets = setup.test_data()
    setup.test_data()
    assert lazytask.READS == ["read"]
    assert torch.equal(inputs, tiny().test_inputs)
    assert torch.equal(targets, tiny().test_targets)


def test_a_run_gives_the_same_numbers(tmp_path):
    eager = {"task": {"name": "tinytask:tiny"}}
    found, expected = (
        Run(resolve(given)).execute(tmp_path / given["task"]["name"]) for given in (GIVEN, eager)
    )
    for name in ("value", "rounds", "wire_upload_bytes"):
        assert found[name] == expected[name]


def test_a_simulation_and_a_sweep_say_what_is_wrong_before_they_train():
    with pytest.raises(UserError, match=SENTENCE):
        Run(resolve(UNREADABLE))
    with pytest.raises(UserError, match=f"run 'fetchsgd-k5': {SENTENCE}"):
        plan({**UNREADABLE, "sweep": [{"method.k": 5}]}, "the test")


def test_a_task_has_one_test_set():
    task = tiny()
    with pytest.raises(ValueError, match="the task 'tiny' has no test set: give test_inputs"):
        replace(task, test_targets=None)
    with pytest.raises(ValueError, match="the task 'tiny' has two test sets"):
        replace(task, test=lambda: HeldOut(task.test_inputs, task.test_targets))
