import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from fetchsgd.tasks.digits import digits, read_digits


@pytest.mark.parametrize("is_found", [True, False])
def test_digits_are_those_of_scikit_learn(is_found, monkeypatch):
    from sklearn.datasets import load_digits

    if not is_found:  # as in an installation without files of its own
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    for ours, theirs in zip(read_digits(), load_digits(return_X_y=True), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_task_does_without_scikit_learn_itself():
    """Its import takes a client in a federation longer than its training."""
    program = (
        "import sys; from fetchsgd.tasks import TASKS; TASKS['digits']();"
        "print('sklearn' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.stdout.strip() == "False", told.stderr


def test_all_images_are_dealt_out():
    task = digits(examples_per_client=3)
    held = len(task.train.inputs) + len(task.test_inputs)
    assert held == 1797
    assert task.test_inputs.min() == -1
    assert task.test_inputs.max() == 1
